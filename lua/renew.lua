-- renew: begins the TTL of a key anew, if it still holds the value.
--
-- KEYS[1] the key
-- ARGV[1] the value, ARGV[2] the TTL in ms
--
-- Answers 'alive', 'gone' or 'taken'; a key of another type is a stranger's.
--
-- May run twice or late: it never creates a key, and prolongs only its own value,
-- which a release or a leave has removed for good. The names in brackets are the
-- steps of internal/model.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  if string.find(held.err, '^WRONGTYPE') then return 'taken' end
  return held
end
if not held then return 'gone' end -- [renew.gone]
if held ~= ARGV[1] then return 'taken' end -- [renew.taken]
-- [renew.alive]
local set = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
if type(set) == 'table' then return set end
return 'alive'
