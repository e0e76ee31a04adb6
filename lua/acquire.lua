-- acquire: takes the key for a value, if it is free.
--
-- KEYS[1] the key, KEYS[2] its record
-- ARGV[1] the value: a token, or "token metadata"; ARGV[2] the TTL in ms
--
-- Answers a number, the fence, where the value holds the key now; 'dead' where it
-- was given up; else what is in the way: { ms left, or -1 without a TTL; the
-- holder's metadata }.
--
-- May run twice: the second finds its own value, answers the same fence and
-- begins the TTL anew. May run late, after a leave: the value is dead by then.

local value, token = ARGV[1], string.sub(ARGV[1], 1, 36)

-- All before any write, so that a key of another type, or a user who may not, is
-- refused whole. By pcall, like the writes, because an error that a script raises
-- loses its name: in Redis 6.2 it is "ERR Error running script ...".
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
local record = redis.pcall('GET', KEYS[2]) or ''
if type(record) == 'table' then return record end

local last, granted, dead = string.match(record, '^(%d+) (%d+ %S+)(.*)$')
local known = string.find(record, token, 1, true)
if known and string.find(dead, token, 1, true) then return 'dead' end

if held and held ~= value then
  local holder = ''
  if string.find(held, '^%x+%-%x+%-%x+%-%x+%-%x+ ') and string.sub(held, 37, 37) == ' ' then
    holder = string.sub(held, 38, 37 + 1024)
  end
  local left = redis.pcall('PTTL', KEYS[1])
  if type(left) == 'table' then return left end
  return { left == 0 and 1 or left, holder } -- 0 is the last millisecond
end

if held and known then
  local set = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(set) == 'table' then return set end
  return tonumber(string.match(granted, '^%d+'))
end

local time = redis.pcall('TIME')
if time.err then return time end
local set = redis.pcall('SET', KEYS[1], value, 'PX', ARGV[2]) -- free, or ours
if set.err then return set end

-- A hybrid clock: the number follows the server's time in µs, and goes on from the
-- last one where that clock was set back. It fits a Lua number until 2255.
local fence = math.max((last or 0) + 1, time[1] * 1000000 + time[2])
set = write_record(KEYS[2], fence, fence, token, dead or '', time)
if set.err then return set end
return fence
