-- plan.lua: the policy, as the caller knows it.
-- Units: windows, precision and phase in µs. Twin: algorithms/plan.go.
--
-- A plan is the list of numbers from ARGV[2] on: guard, grain, number of units,
-- number of tiers, the units' hashes, and from 5 + number of units on, six numbers
-- a tier. The state begins with the same numbers as text, so that a changed policy
-- is found by comparing two strings, and read only then.

local LOG, WINDOW, WEIGHTED, FIXED, ANCHORED, CONCURRENCY, CALENDAR = 0, 1, 2, 3, 4, 8, 9 -- as in algorithms/tier.go
local WORDS = {[0] = 3, 2, 4, 3, 4, 2, 2, 2, 0, 4} -- what a tier of each algorithm remembers
local FIRST = {[0] = 3, 2, 3, 2, 4, 2, 2, 2, 0, 3} -- and did in a state of format 1

local key, op = KEYS[1], ARGV[1]
local cursor = 6 + ARGV[4] + 6 * ARGV[5] -- the next argument
local planText = table.concat(ARGV, ' ', 2, cursor - 1)
local plan = {spread(ARGV, 2, cursor - 1)}
for i = 1, #plan do plan[i] = plan[i] + 0 end
local guard, grain, units = plan[1], 2 ^ plan[2], plan[3]
local ESTIMATE = 2 ^ 32 -- is added to the hash of a unit whose amounts are estimates
local estimates, estimated = false, {} -- whether there are any, and of each unit
for u = 1, units do
  estimated[u] = plan[4 + u] >= ESTIMATE
  estimates = estimates or estimated[u]
end

local function argument()
  cursor = cursor + 1
  return ARGV[cursor - 1] + 0
end

-- The next amounts, one for each unit.
local function amounts()
  local cost = {}
  for u = 1, units do cost[u] = argument() end
  return cost
end
