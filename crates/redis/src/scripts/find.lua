-- Finds the depths of a prompt for all epochs, in one call.
-- KEYS: epochs, sessions, incomplete holders. ARGV: first part of the block keys, last parts of the keys (8 bytes for
-- each block).
-- Returns {}, or { epochs of the first block (8 bytes each), holder or nil for each epoch, block numbers where
-- entries change, entries from there on or nil, keys with invalid values, incomplete holders (8 bytes each) }.
-- A value that no replica writes is invalid and counts as missing.
local beginning, ends = ARGV[1], ARGV[2]
local blocks = #ends / 8
local seen, invalid = {}, {}
local function note_invalid(key)
  if #invalid < 64 then invalid[#invalid + 1] = key end
end
-- The result of a command; false if the key has another type, which is recorded as invalid.
local function read(command, key, ...)
  local result = redis.pcall(command, key, ...)
  if type(result) == 'table' and result.err then
    if not string.find(result.err, 'WRONGTYPE', 1, true) then error(result.err, 0) end
    note_invalid(key)
    return false
  end
  return result
end
local function entries(block)
  local found = seen[block]
  if found == nil then
    local key = beginning .. string.sub(ends, block * 8 - 7, block * 8)
    found = read('GET', key)
    if found and (#found == 0 or #found % 9 ~= 0) then
      note_invalid(key)
      found = false
    end
    seen[block] = found
  end
  return found
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Ranks that other replicas may list as completely written, and that are not.
local incomplete = {}
local ended = read('HGETALL', KEYS[3]) or {}
for i = 1, #ended, 2 do
  local counts_until = tonumber(ended[i + 1])
  if #ended[i] ~= 8 or not counts_until then
    note_invalid(KEYS[3])
  elseif counts_until > now then
    incomplete[#incomplete + 1] = ended[i]
  end
end
incomplete = table.concat(incomplete)

-- No epoch holds the first block.
if blocks == 0 or not entries(1) then
  if #invalid == 0 and incomplete == '' then return {} end
  return { '', {}, {}, {}, invalid, incomplete }
end

-- Probes blocks in doubling steps until no epoch holds one.
local probed, block = { 1 }, 1
while block < blocks and entries(block) do
  block = math.min(block * 2, blocks)
  entries(block)
  probed[#probed + 1] = block
end

-- Equal entries at two blocks are equal in between: a held prefix implies all shorter ones.
local function between(low, high)
  if high - low < 2 or seen[low] == seen[high] then return end
  local middle = math.floor((low + high) / 2)
  entries(middle)
  between(low, middle)
  between(middle, high)
end
for i = 2, #probed do between(probed[i - 1], probed[i]) end

local changes, from, last = {}, {}, nil
local visited = {}
for at in pairs(seen) do visited[#visited + 1] = at end
table.sort(visited)
for _, at in ipairs(visited) do
  if seen[at] ~= last then
    last = seen[at]
    changes[#changes + 1] = at
    from[#from + 1] = last
  end
  if not last then break end
end

local is_valid = {}
local sessions = read('HGETALL', KEYS[2]) or {}
for i = 1, #sessions, 2 do
  local valid_until = string.match(sessions[i + 1], '^%d+ (%d+)$')
  if not valid_until then note_invalid(KEYS[2]) end
  is_valid[sessions[i]] = valid_until ~= nil and tonumber(valid_until) > now
end

local epochs, holders = {}, {}
for at = 1, #seen[1], 9 do epochs[#epochs + 1] = string.sub(seen[1], at, at + 7) end
for start = 1, #epochs, 4000 do
  local known = read('HMGET', KEYS[1], unpack(epochs, start, math.min(start + 3999, #epochs))) or {}
  for i = 1, math.min(4000, #epochs - start + 1) do
    -- Holder, session, whether the epoch is completely written.
    local epoch = known[i]
    if epoch and #epoch ~= 17 then
      note_invalid(KEYS[1])
      epoch = false
    end
    if epoch and string.byte(epoch, 17) == 1 and is_valid[string.sub(epoch, 9, 16)] then
      holders[start + i - 1] = string.sub(epoch, 1, 8)
    else
      holders[start + i - 1] = false
    end
  end
end
return { table.concat(epochs), holders, changes, from, invalid, incomplete }
