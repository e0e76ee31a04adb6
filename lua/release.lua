-- release and leave: frees the key if it holds the value, and hands it to the first
-- line in the queue; and, where the record is given, makes the value dead.
--
-- KEYS[1] the key, KEYS[2] its queue, if only the key can be reached not given
-- KEYS[3] its record: only where a command that carries the value may still be
--   under way, or for leave
-- ARGV[1] the value; ARGV[2] its member in the queue, '' where it has none
--
-- Answers 'released', or why there was nothing to free: 'gone', or 'taken'; a key
-- of another type is a stranger's.
--
-- May run twice or late: it removes only its own value and its own place, which
-- nothing sets again once the value is dead. Made dead twice, it stays dead from the
-- first time on.
--
-- The names in brackets are the steps of internal/model: [release.notOurs] is the
-- first two answers below; leave takes [leave.dead], [leave.handOver], [leave.delete].

local value = ARGV[1]
local held = redis.pcall('GET', KEYS[1])
local answer = 'taken'
if type(held) == 'table' then
  if not string.find(held.err, '^WRONGTYPE') then return held end
elseif not held then
  answer = 'gone'
elseif held == value then
  answer = 'released'
end

local record, token, time = '', string.sub(value, 1, 36), {}
if KEYS[3] then
  record, time = redis.pcall('GET', KEYS[3]) or '', redis.pcall('TIME')
  if ARGV[2] ~= '' then
    redis.pcall('ZREM', KEYS[2], ARGV[2]) -- before the hand-over, which would find it
  end
end

-- The DEL comes before all that the record and the queue may have against it, and
-- before the SETs: a Redis out of memory refuses a SET that comes first and takes one
-- that follows. Where the key cannot be handed over it is free all the same, and the
-- lines find it with their polls.
if answer == 'released' then
  local deleted = redis.pcall('DEL', KEYS[1])
  if type(deleted) == 'table' then return deleted end
  if KEYS[2] then hand_over(KEYS[1], KEYS[2]) end -- [release.handOver], else [release.delete]
end
if type(record) == 'table' then return record end
if time.err then return time end
if KEYS[3] then -- [release.dead]
  local last, fence, grantee, dead = string.match(record, '^(%d+) (%d+) (%S+)(.*)$')
  if not string.find(dead or '', token, 1, true) then
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    dead = string.format('%s %s %.0f', dead or '', token, now)
    local set = write_record(KEYS[3], tonumber(last or 0), tonumber(fence or 0), grantee or '-', dead, time)
    if set.err then return set end
  end
end
return answer
