-- plan.lua: the policy of the caller. Units: windows, precision and phase in µs.
-- Twin: algorithms/plan.go.
-- Uses: call.lua, pack.lua, rule.lua.
-- Gives: plans, plan and its fields, paceOf, amounts, setNamed, numbersIn, listOf.
--
-- A plan is a list of numbers: guard, the resolution as a power of two, number of units, number of
-- tiers, the units' hashes, and from 5 + number of units on, six numbers for each tier. The state
-- begins with the same numbers as text. A call detects a changed policy by comparing two strings,
-- and parses the plan of the state only then.
--
-- In a plan with tiers that follow what responses name, an equals sign is next, and then three kinds of
-- numbers: when the last response that changed something was admitted (0: none), as generation + now, a hash
-- of the units and the tiers of the policy, and the named limits of the tiers of the policy (0: the
-- policy's own). Of two such plans with one hash, the later one holds: see followed in state.lua.
--
-- A plus sign may follow, and then the tiers that the state keeps for releases with other plans,
-- see withKept in convert.lua: number of units, number of tiers, hashes of those units, and seven
-- numbers for each tier: the six above and the instant, as Unix time, until which it is kept. These
-- guest tiers belong to the plan and are charged, but do not decide, and calls contain no arguments
-- for them.
--
-- The tables made of a plan are kept for the next call, because a function of the server stays
-- loaded.

local ESTIMATE = 2 ^ 32 -- added to the hash of a unit with estimated amounts
local MOST_PLANS = 64 -- the most plans that are kept
local GUESTS = 8 -- the most guest tiers of units without leases

local plans, planCount = {}, 0 -- by their text
local plan -- the list of the current plan, and the tables made of it, see tiers.lua
-- Of the plan; requests that land within the same resolution land together.
local guard, resolution, units
local estimates, estimated -- whether any unit is estimated, and for each unit whether it is
local estimating -- by unit, whether the open amount is estimates, of this plan or of another release

-- For how long the fastest tier of a plan spaces requests that cost one unit.
local function paceOf(p)
  if p.pace then return p.pace end
  for t = 5 + p[3], 4 + p[3] + 6 * p.deciding, 6 do
    if p[t + 3] > 0 then p.pace = min(p.pace or NEVER, ceilMulDiv(1, p[t + 3], p[t + 2])) end
  end
  p.pace = p.pace or 1
  return p.pace
end

-- The next arguments as amounts, one for each unit.
local function amounts()
  local cost = {}
  for u = 1, plan.ownUnits do cost[u] = argument() end
  for u = plan.ownUnits + 1, units do cost[u] = 0 end
  return cost
end

-- Sets what a plan with a text has taken over, if it can.
local function setNamed(p, words)
  local at, policy, named = string.match(words, '=(%d+) (%d+)([%d ]*)')
  if at then p.namedAt, p.policy, p.named = at + 0, policy, named end
end

local function numbersIn(words)
  local list, i = {}, 0
  for n in string.gmatch(words, '%d+') do
    i = i + 1
    list[i] = n + 0
  end
  return list
end

-- The numbers of a plan with its guest tiers; nil if the text is not a plan, and the problem if it is one of a newer
-- release. ownUnits is the number
-- of units for which calls have arguments, deciding the number of tiers that decide, and ends lists
-- until when each guest tier is kept.
local function listOf(words)
  local own, plus, kept = string.match(words, '^([%d ]*)=?[%d ]*(%+?)([%d ]*)$')
  local p = numbersIn(own or '')
  if not p[4] or #p ~= 4 + p[3] + 6 * p[4] then return nil end
  p.ownUnits, p.deciding, p.ends = p[3], p[4], {}
  if plus == '+' then
    local k, list = numbersIn(kept), {p[1], p[2]}
    if not k[2] or #k ~= 2 + k[1] + 7 * k[2] then return nil end
    list[3], list[4], list.ownUnits, list.deciding, list.ends = p[3] + k[1], p[4] + k[2], p[3], p[4], {}
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
    if p[t] > LEARNED then return nil, 'version of the state is not known: it has an algorithm ' .. text(p[t]) end
    if not WORDS[p[t]] or p[t + 1] >= p[3] then return nil end
  end
  return p
end
