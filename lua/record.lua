-- Put before the scripts that write a key's record. The record is one string,
--
--   LAST FENCE TOKEN { DEADTOKEN TIME }
--
-- LAST is the last number given. FENCE and TOKEN name the present grant, "0 -"
-- where none was recorded. Then come the dead tokens, oldest first, each with the
-- time at which it was made dead, in ms of the server's clock. Tokens hold no
-- space and none is part of another, so a plain search for one is exact.

-- Writes the record, without the dead tokens that are too old or too many, and
-- lets it live until its last number, read as a time in µs, is certainly past:
-- the server's clock then carries the order on by itself.
local function write_record(key, last, fence, token, dead, time)
  local now, px = time[1] * 1000 + math.floor(time[2] / 1000), 10000
  if dead ~= '' then
    local live = {}
    for dead_token, at in string.gmatch(dead, '(%S+) (%d+)') do
      if now - at < 60000 then live[#live + 1] = ' ' .. dead_token .. ' ' .. at end
    end
    dead = table.concat(live, '', math.max(1, #live - 15))
    if dead ~= '' then px = 60000 end
  end
  if last / 1000 + 1000 - now > px then px = last / 1000 + 1000 - now end
  return redis.pcall('SET', key, string.format('%.0f %.0f %s%s', last, fence, token, dead), 'PX', math.ceil(px))
end
