-- Put before the scripts that may hand a key over. The queue is a sorted set with a
-- member for each line that waits, its score the line's place. A member says on
-- which channel the line is woken, and which value it is granted:
--
--   LENGTH MARK CHANNEL VALUE
--
-- LENGTH is the channel's, in bytes. MARK is ":" where who hears the channel does so
-- on this server, and can be counted, and "~" where that may be another one.

-- Gives a free key to the first line that is before a place (nil: to any), and
-- returns the value granted, false if there is none, or an error. A line that
-- nobody would hear is passed over: its next poll puts it back at its place. The
-- grant outlives the time between two polls, so that a lost wake-up costs nothing
-- but time. The ZREM comes first, after which a Redis out of memory takes the SET.
local function hand_over(key, queue, place)
  while true do
    local head = redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES')
    if head.err then return head end
    if not head[1] or place and tonumber(head[2]) >= place then return false end
    local removed = redis.pcall('ZREM', queue, head[1])
    if type(removed) == 'table' then return removed end
    local length, mark, from = string.match(head[1], '^(%d+)([:~])()')
    if length then
      local channel, value = string.sub(head[1], from, from + length - 1), string.sub(head[1], from + length)
      local heard = redis.pcall('PUBLISH', channel, #value .. ':' .. value .. key)
      if heard ~= 0 or mark == '~' then -- else [handOver.skip]
        local set = redis.pcall('SET', key, value, 'PX', 1500)
        return set.err and set or value
      end
    end
  end
end
