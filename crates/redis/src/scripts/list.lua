-- Returns the directory, without the ranks whose lease has expired.
-- KEYS: alive, publishers, descriptions, states, version. ARGV: the caller's version.
-- Returns { removed, version, states, leases }, where `removed` counts invalid values, and also publishers and
-- descriptions if the version differs from the caller's; each table as a flat list. A lease is the number of
-- milliseconds until its end.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now), 'LIMIT', 0, 256)
for _, holder in ipairs(expired) do
  redis.call('ZREM', KEYS[1], holder)
  for key = 2, 4 do redis.call('HDEL', KEYS[key], holder) end
end
if #expired > 0 then redis.call('SET', KEYS[5], time[1] .. '.' .. time[2]) end
local version = redis.call('GET', KEYS[5]) or ''
-- Holder ids and publisher ids have 8 bytes.
local function remove_invalid(key, is_valid)
  local all, kept = redis.call('HGETALL', key), {}
  for i = 1, #all, 2 do
    if #all[i] == 8 and is_valid(all[i + 1]) then
      kept[#kept + 1] = all[i]
      kept[#kept + 1] = all[i + 1]
    else
      redis.call('HDEL', key, all[i])
      removed = removed + 1
    end
  end
  return kept
end
local function is_any() return true end
local function is_publisher(value) return #value == 8 end
local function is_description(value) return #value >= 8 end
local states = remove_invalid(KEYS[4], is_any)
local leases = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'WITHSCORES')
for i = 2, #leases, 2 do leases[i] = string.format('%d', leases[i] - now) end
if version == ARGV[1] then return { removed, version, states, leases } end
local publishers, descriptions = remove_invalid(KEYS[2], is_publisher), remove_invalid(KEYS[3], is_description)
return { removed, version, states, leases, publishers, descriptions }
