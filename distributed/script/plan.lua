-- plan.lua: the policy, as the caller knows it.
-- Units: windows, precision and phase in µs. Twin: algorithms/plan.go.
--
-- A plan is a list of numbers: guard, grain, number of units, number of tiers, the
-- units' hashes, and from 5 + number of units on, six numbers a tier. The state begins
-- with the same numbers as text, so that a changed policy is found by comparing two
-- strings, and read only then.
--
-- Behind it, after a plus sign, may follow the tiers that the state keeps for releases whose
-- plans have them and this one has not, see beside in convert.lua: number of units, number of
-- tiers, hashes of those units, and seven numbers a tier: the six and the instant, as Unix
-- time, from which it is not kept. They are tiers of the plan that are charged and do not
-- decide, and no call tells anything of them.
--
-- What is made of a plan is kept for the next call: a function of the server lives on.

local LOG = 0 -- these as in algorithms/tier.go
local WINDOW = 1
local WEIGHTED = 2
local FIXED = 3
local ANCHORED = 4
local CONCURRENCY = 8
local CALENDAR = 9
local WORDS = {[0] = 3, 2, 4, 3, 4, 2, 2, 2, 0, 4} -- what a tier of each algorithm remembers
local ESTIMATE = 2 ^ 32 -- is added to the hash of a unit whose amounts are estimates
local MOST_PLANS = 64 -- are kept

local GUESTS = 8 -- tiers are kept for others at most

local plans, planCount = {}, 0 -- by their text
local plan -- the list, and what was made of it, see tiers.lua
local guard, grain, units -- of the plan
local estimates, estimated -- whether there are any, and of each unit

-- The next amounts, one for each unit.
local function amounts()
  local cost = {}
  for u = 1, plan.told do cost[u] = argument() end
  for u = plan.told + 1, units do cost[u] = 0 end
  return cost
end

local function numbersIn(words)
  local list, i = {}, 0
  for n in string.gmatch(words, '%d+') do
    i = i + 1
    list[i] = n + 0
  end
  return list
end

-- The numbers of a plan and of what is kept beside it; nil if they can't be. told is how many of
-- its units calls tell of, deciding how many of its tiers decide, and ends until when each of
-- the others is kept.
local function listOf(words)
  local own, plus, kept = string.match(words, '^([%d ]*)(%+?)([%d ]*)$')
  local p = numbersIn(own or '')
  if not p[4] or #p ~= 4 + p[3] + 6 * p[4] then return nil end
  p.told, p.deciding, p.ends = p[3], p[4], {}
  if plus == '+' then
    local k, list = numbersIn(kept), {p[1], p[2]}
    if not k[2] or #k ~= 2 + k[1] + 7 * k[2] then return nil end
    list[3], list[4], list.told, list.deciding, list.ends = p[3] + k[1], p[4] + k[2], p[3], p[4], {}
    for u = 1, p[3] do list[4 + u] = p[4 + u] end
    for u = 1, k[1] do list[4 + p[3] + u] = k[2 + u] end
    for i = 5 + p[3], #p do list[#list + 1] = p[i] end
    for t = 3 + k[1], #k, 7 do
      for i = t, t + 5 do list[#list + 1] = k[i] end
      list.ends[#list.ends + 1] = k[t + 6]
    end
    p = list
  end
  for t = 5 + p[3], #p, 6 do
    if not WORDS[p[t]] or p[t + 1] >= p[3] then return nil end
  end
  return p
end

local function hasGroups(algorithm) return algorithm == WINDOW or algorithm == ANCHORED end
local function isBucket(algorithm) return algorithm >= 5 and algorithm <= 7 end
