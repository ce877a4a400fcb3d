-- reading.lua: the operation o, the provider's reports of each tier, and the use by other programs
-- that they prove. Units: µs.
-- Twin: algorithms/observe.go, which explains the method.
-- Uses: flight.lua, ruleOf, endProbe, exact. Gives: ops.o.
--
-- "Others" are other programs, whose requests this quota does not admit. A reading consists of
-- these numbers:
--
--    1  when the report was received, or 0
--    2  the units in the report
--    3  by how much the own units that the provider may have counted by then exceed it
--    4  when units were last charged for others
--    5  until when the use by others is assumed to go on
--
-- The next ones are explained in algorithms/reset.go:
--
--    6  when the count ends
--    7  the units charged for others until then, besides those in the rule
--    8  the units landed since the report; of a window, those that the provider may not have counted
--       before its end
--    9  when the window last reopened
--   10  1 if the tier has a rule without others, and then (11 to 14) the four words of that rule, or zeros
--   15  when a log found others after finding none, or when a window ends at the earliest
--   16  how many others the log found then
--   17  from when on one request may try whether the count has ended, or 0
--   18  number 17 at the try, until its response arrives, or 0
--
-- There is one reading for each tier, or none at all.

local MOST_USED = 2 ^ 50 -- more than any tier can hold

-- The amount of a unit in flight that was sent by now, if no request is in flight for longer than
-- way.
local function left(unit, way)
  local n = aloft[unit]
  for i = slots.first, slots.last do
    local at, carried = landing(i, unit)
    if at > now + way then n = n - carried end
  end
  return n
end

-- When a count ends. was is the end of the count in an earlier report, which may be the same count.
local function sooner(was, reset, slack)
  local ends = frontier + reset
  return was > frontier and was >= ends - slack and min(was, ends) or ends
end

-- Whether tier i counts others separately, because it keeps the instant at which each unit landed.
local function hasStamps(i)
  local algorithm = plan[5 + units + 6 * (i - 1)]
  return algorithm == LOG or algorithm == WINDOW
end

-- The instant until which tier i counts others separately.
local function endOthers(i, reset, slack)
  local ends = frontier + plan[8 + units + 6 * (i - 1)]
  return reset > 0 and min(ends, sooner(readings[i][6], reset, slack)) or ends
end

-- Charges n units of tier i for others, until the reset if the report contains one.
local function landOthers(i, n, reset, slack)
  local r = readings[i]
  if hasStamps(i) then
    if r[7] == 0 then r[15], r[16] = frontier, n end
    r[6], r[7] = endOthers(i, reset, slack), r[7] + n
  elseif reset == 0 then
    land(i, frontier, n)
  elseif rules[i].reopens then
    rules[i].land(frontier, n)
  else
    if not own[i] then
      own[i] = ruleOf(plan, 5 + units + 6 * (i - 1))
      own[i].load(rules[i].words(), 1)
    end
    rules[i].land(frontier, n)
    r[6] = sooner(r[6], reset, slack)
  end
end

-- Updates the separate count of others in tier i, after the report for a request of n units that
-- was admitted at since.
local function keepOthers(i, used, since, n, reset, slack)
  local r, rule, t = readings[i], rules[i], 5 + units + 6 * (i - 1)
  local window = plan[t + 3]
  if not hasStamps(i) or r[7] == 0 or r[1] ~= frontier then return end
  if frontier >= r[4] + window and used < capacity[i] then
    local landed = rule.used(frontier + guard + plan[t + 5]) - rule.used(since + window) + n
    local most = max(0, used - landed)
    if most > 0 and frontier < r[5] then most = most + 1 end
    local less = max(0, min(r[7] - most, r[3]))
    r[7], r[3] = r[7] - less, r[3] - less
  end
  if r[7] > 0 and frontier < r[5] then r[5] = frontier + window end
  r[6] = endOthers(i, reset, slack)
end

-- Makes the window of tier i reopen at the reset, if the provider counted all landed units before
-- it. Otherwise the units charged for others with this report end at the reset. In tiers without
-- windows a request tries after the reset, unless a try is due already.
local function tellReset(i, since, reset, slack, others)
  local shortest = plan[5 + units + 6 * (i - 1)] == CALENDAR and 79200000000 or plan[8 + units + 6 * (i - 1)]
  local rule, r, from = rules[i], readings[i], frontier + reset - slack - max(0, now - since) -- the report may be from any instant since its request
  if reset == 0 then return end
  if not rule.reopens then
    if r[17] == 0 or r[17] > frontier then r[17] = sooner(r[17], reset, slack) end
  elseif from > frontier and 2 * slack < shortest then
    local ends = sooner(r[6], reset, slack)
    if r[6] <= frontier then -- no reset was known
    elseif r[6] < ends then -- the previous window has ended
      if rule.reopen then rule.reopen() end
    elseif r[15] <= ends then
      from = max(from, r[15])
    end
    r[6], r[8], r[15] = ends, 0, from
  elseif others > 0 and r[6] <= frontier then
    r[6], r[8], r[15] = frontier + reset, rule.used(frontier) - others, 0
  end
end

-- The units of others that tier i does not count yet, and that the response to a request of n units
-- proves. The request was admitted at since and was in flight for at most way.
local function others(i, used, since, n, way)
  local r, window = readings[i], plan[5 + units + 6 * (i - 1) + 3]
  -- The provider may still have counted units that have left their window since the request was
  -- sent.
  local own = min(rules[i].used(min(since, frontier)), MOST_USED) + r[7] + left(unitOf[i], way)
  local short = r[3]
  if since < r[1] and used > r[2] then short = short - n end -- the provider counted this request after the previous report
  local more = max(0, used + (frontier < r[5] and 1 or 0) - own)
  if r[1] > 0 then more = max(more, -short) end
  if more > 0 then
    if frontier < r[4] + window then r[5] = frontier + window end
    r[4] = frontier
  end
  r[3] = short + more
  if since >= r[1] then r[1], r[2], r[3] = frontier, used, own + more - used end
  return more
end

function ops.o()
  local way = max(guard, argument())
  advance(now)
  while cursor <= #arguments do
    local i, used, since, n, sure, reset, slack = argument(), argument(), argument(), argument(), argument(), argument(), argument()
    local rule, u = rules[i], unitOf[i]
    for k = #readings + 1, rule.concurrent and 0 or #rules do readings[k] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
    local r = readings[i]
    local ended = rule.opened and rule.opened(frontier) > since or r and r[9] > since
    used, reset = min(used, capacity[i]), max(0, reset - (frontier - now))
    if not rule.concurrent and not ended then
      local keep = estimated[u] and max(0, used - aloft[u]) or used
      local more = others(i, used, since, n, way)
      -- The report of a request admitted after a try is authoritative, except for units that landed
      -- later.
      local decides = r[18] > 0 and since >= r[18]
      if decides then
        keep, r[18] = keep + max(0, r[8] - n), 0
        if probing then endProbe() end
      end
      if more > 0 then
        if rule.depart then rule.depart(frontier) end
        landOthers(i, more, reset, slack)
      elseif decides or sure == 1 and since >= exact then
        rule.forget(frontier, keep)
        if own[i] then own[i].forget(frontier, keep) end
        r[7] = max(0, min(r[7], keep - rule.used(frontier)))
      end
      keepOthers(i, used, since, n, reset, slack)
      tellReset(i, since, reset, slack, more)
      if rule.prove and used > 0 then rule.prove(since, now) end
    end
    if sure == 1 then exact = max(exact, since) end
  end
end
