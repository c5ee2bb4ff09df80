-- Which lives hold how much of a prompt, in one call.
-- KEYS: lives, sessions. ARGV: beginning of block keys, the keys' ends (8 bytes for each block of the prompt).
-- Answers {}, or { lives of the first block (8 bytes each), holder for each life or nil,
--   block numbers where entries change, entries from there on or nil, keys whose values are none of ours }.
-- A value that is none of ours counts as missing.
local beginning, ends = ARGV[1], ARGV[2]
local blocks = #ends / 8
local seen, invalid = {}, {}
local function note_invalid(key)
  if #invalid < 64 then invalid[#invalid + 1] = key end
end
-- The answer of a command; false and a note if the key holds another type.
local function read(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' and answer.err then
    if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
    note_invalid(key)
    return false
  end
  return answer
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

-- A prompt that no life holds ends here.
if blocks == 0 or not entries(1) then
  if #invalid == 0 then return {} end
  return { '', {}, {}, {}, invalid }
end

-- Steps that double, until nothing is held.
local probed, block = { 1 }, 1
while block < blocks and entries(block) do
  block = math.min(block * 2, blocks)
  entries(block)
  probed[#probed + 1] = block
end

-- What is the same at two blocks is the same in between: a held prefix holds all shorter ones.
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

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local is_valid = {}
local sessions = read('HGETALL', KEYS[2]) or {}
for i = 1, #sessions, 2 do
  local valid_until = string.match(sessions[i + 1], '^%d+ (%d+)$')
  if not valid_until then note_invalid(KEYS[2]) end
  is_valid[sessions[i]] = valid_until ~= nil and tonumber(valid_until) > now
end

local lives, holders = {}, {}
for at = 1, #seen[1], 9 do lives[#lives + 1] = string.sub(seen[1], at, at + 7) end
for start = 1, #lives, 4000 do
  local known = read('HMGET', KEYS[1], unpack(lives, start, math.min(start + 3999, #lives))) or {}
  for i = 1, math.min(4000, #lives - start + 1) do
    -- Holder, session, whether all of it is written.
    local life = known[i]
    if life and #life ~= 17 then
      note_invalid(KEYS[1])
      life = false
    end
    if life and string.byte(life, 17) == 1 and is_valid[string.sub(life, 9, 16)] then
      holders[start + i - 1] = string.sub(life, 1, 8)
    else
      holders[start + i - 1] = false
    end
  end
end
return { table.concat(lives), holders, changes, from, invalid }
