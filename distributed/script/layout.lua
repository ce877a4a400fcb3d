-- layout.lua: where things lie in a state.
--
--   "thr" version | length of the plan, the plan as text | rings of logs | body
--
-- The body is a head of fixed size, the units on their way, the words of each
-- tier (all of it: the front, whose size the plan tells), and then the queues:
-- groups of each tier, slots, pool, leases, whose lengths the front tells. A state
-- with rings is as long from its first day as it may become, because Redis doubles
-- a string that grows; what lies behind the body means nothing.

local MAGIC, VERSION = 'thr', 1
local FORMAT = '>I7I7I7I7I7I4I1I2I1I2'
local HEAD = 45 -- bytes of that
local COUNTS = 41 -- where in it the lengths of slots, pool and leases begin

local function hasGroups(algorithm) return algorithm == WINDOW or algorithm == ANCHORED end
local function isAligned(algorithm) return algorithm == 2 or algorithm == 3 end
local function isBucket(algorithm) return algorithm >= 5 and algorithm <= 7 end

-- The size of the front of a body.
local function frontOf(p)
  local words = p[3]
  for t = 5 + p[3], #p, 6 do words = words + WORDS[p[t]] end
  return HEAD + 7 * words
end

local function ringsOf(p)
  local stamps = 0
  for t = 5 + p[3], #p, 6 do
    if p[t] == LOG then stamps = stamps + p[t + 2] end
  end
  return 7 * stamps
end

-- The size of a body, told by its front; more than any body's if that is nonsense.
local function bodyOf(p, front)
  if #front < frontOf(p) then return NEVER end
  local slots, pool, leases = parse('>I2I1I2', front, COUNTS)
  local records = (1 + p[3]) * (slots + pool) + (3 + p[3]) * leases
  local at = HEAD + 7 * p[3] + 1
  for t = 5 + p[3], #p, 6 do
    local algorithm = p[t]
    if hasGroups(algorithm) then
      records = records + 2 * parse('>I7', front, at + 7)
    elseif algorithm == LOG then
      local length, place = parse('>I7I7', front, at)
      if length > p[t + 2] or place >= p[t + 2] then return NEVER end
    end
    at = at + 7 * WORDS[algorithm]
  end
  return frontOf(p) + 7 * records
end
