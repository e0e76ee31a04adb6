-- acquire: takes the key for a value, if it is free and nobody is queued before.
--
-- KEYS[1] the key, KEYS[2] its record, KEYS[3] its queue
-- ARGV[1] the value: a token, or "token metadata"; ARGV[2] the TTL in ms
-- ARGV[3] the place of a caller that waits, 0 where it has none yet; '' where it
--   does not wait
-- ARGV[4] its member in the queue; '' where it can hear no wake-up
--
-- Answers a number, the fence, where the value holds the key now; 'dead' where it
-- was given up; else what is in the way: { ms left, or -1 without a TTL; the
-- holder's metadata; the place of a caller that waits }.
--
-- May run twice: the second finds its own value, answers the same fence and
-- begins the TTL anew, or finds its own place and keeps it. May run late, after a
-- leave: the value is dead by then, and takes and queues nothing.
--
-- The names in brackets are the steps of internal/model.

local value, token, place = ARGV[1], string.sub(ARGV[1], 1, 36), tonumber(ARGV[3])

-- All before any write, so that a key of another type, or a user who may not, is
-- refused whole. By pcall, like the writes, because an error that a script raises
-- loses its name: in Redis 6.2 it is "ERR Error running script ...".
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
local record = redis.pcall('GET', KEYS[2]) or ''
if type(record) == 'table' then return record end

local last, granted, dead = string.match(record, '^(%d+) (%d+ %S+)(.*)$')
local known = string.find(record, token, 1, true)
if known and string.find(dead, token, 1, true) then return 'dead' end -- [acquire.dead]

if held == value and known then -- [acquire.ours]
  local set = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(set) == 'table' then return set end
  return tonumber(string.match(granted, '^%d+'))
end

if not held then -- [acquire.handOver], unless nobody is before
  held = hand_over(KEYS[1], KEYS[3], place ~= 0 and place)
  if type(held) == 'table' then return held end
end

-- A hybrid clock: the number follows the server's time in µs, and goes on from the
-- last one where that clock was set back. It fits a Lua number until 2255.
local time = redis.pcall('TIME')
if time.err then return time end
local number = math.max((last or 0) + 1, time[1] * 1000000 + time[2])

-- Gives the caller its place, and queues it there. A PEXPIRE comes first, after
-- which a Redis out of memory takes the others.
local function keep_place()
  local lives = redis.pcall('PEXPIRE', KEYS[3], 60000)
  if type(lives) == 'table' then return lives end
  if place == 0 then
    -- It may be queued already, by a try whose answer was lost.
    local score = ARGV[4] ~= '' and redis.pcall('ZSCORE', KEYS[3], ARGV[4])
    if type(score) == 'table' then return score end
    local fence, grantee = string.match(granted or '0 -', '^(%d+) (%S+)')
    local set = write_record(KEYS[2], number, fence, grantee, dead or '', time)
    if set.err then return set end
    place = tonumber(score or number)
  end
  if ARGV[4] ~= '' then -- [acquire.queue], or [acquire.keep] where it is there already
    local queued = redis.pcall('ZADD', KEYS[3], string.format('%.0f', place), ARGV[4])
    if type(queued) == 'table' then return queued end
    if lives == 0 then redis.pcall('PEXPIRE', KEYS[3], 60000) end
  end
end

-- Tells whether Redis refuses all writes for now. A busy key is busy all the same,
-- and its lines poll.
local function takes_no_writes(refused)
  local name = string.match(refused.err, '^%u+')
  return name == 'READONLY' or name == 'MISCONF' or name == 'OOM' or name == 'NOREPLICAS'
end

if held and held ~= value then
  local holder = ''
  if string.find(held, '^%x+%-%x+%-%x+%-%x+%-%x+ ') and string.sub(held, 37, 37) == ' ' then
    holder = string.sub(held, 38, 37 + 1024)
  end
  local left = redis.pcall('PTTL', KEYS[1])
  if type(left) == 'table' then return left end
  if left == 0 then left = 1 end -- the last millisecond
  if not place then return { left, holder } end -- [acquire.busy]
  local refused = keep_place()
  if refused and not takes_no_writes(refused) then return refused end
  return { left, holder, place }
end

if place and place ~= 0 and ARGV[4] ~= '' then
  local removed = redis.pcall('ZREM', KEYS[3], ARGV[4])
  if type(removed) == 'table' then return removed end
end
-- [acquire.hold], or [acquire.ours] after a grant, which gets its fence now.
local set = redis.pcall('SET', KEYS[1], value, 'PX', ARGV[2])
if set.err then return set end
set = write_record(KEYS[2], number, number, token, dead or '', time)
if set.err then return set end
return number
