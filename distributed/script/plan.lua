-- plan.lua: the policy, as the caller knows it.
-- Units: windows, precision and phase in µs. Twin: algorithms/plan.go.
--
-- A plan is a list of numbers: guard, grain, number of units, number of tiers, the
-- units' hashes, and from 5 + number of units on, six numbers a tier. The state begins
-- with the same numbers as text, so that a changed policy is found by comparing two
-- strings, and read only then.
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
local FIRST = {[0] = 3, 2, 3, 2, 4, 2, 2, 2, 0, 3} -- and did in a state of format 1
local ESTIMATE = 2 ^ 32 -- is added to the hash of a unit whose amounts are estimates
local MOST_PLANS = 64 -- are kept

local plans, planCount = {}, 0 -- by their text
local plan -- the list, and what was made of it, see tiers.lua
local guard, grain, units -- of the plan
local estimates, estimated -- whether there are any, and of each unit

-- The next amounts, one for each unit.
local function amounts()
  local cost = {}
  for u = 1, units do cost[u] = argument() end
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

local function hasGroups(algorithm) return algorithm == WINDOW or algorithm == ANCHORED end
local function isBucket(algorithm) return algorithm >= 5 and algorithm <= 7 end
