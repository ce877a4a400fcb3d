-- reading.lua: what the provider reported of each tier, and what it proves that others use.
-- Units: µs. Twin: algorithms/observe.go, which explains it.
--
-- A reading is when it was received, or 0; the units that it reports; by how much own units
-- that may have been counted by then exceed it; when something was last charged for others;
-- until when these are taken to go on. Then follows what algorithms/reset.go explains: when
-- the count ends; what was charged for others until then, beside what the rule counts; what
-- has landed since it was told, in a window that which may not have been counted before its end; when
-- the window last reopened; and 1 with the four words that the tier would remember without others,
-- or zeros. The last are when a log found others after none, or when a window ends at the earliest; how
-- many others it found; from when on one request may try whether the count has ended, or 0; and
-- what that was for the one that has, until a response tells, or 0. There is one reading of each
-- tier, or none.

local MOST_USED = 2 ^ 50 -- more than any tier can hold

-- How many of a unit are in flight that left by now, if none is for longer than so long.
local function left(unit, way)
  local n = aloft[unit]
  for i = slots.first, slots.last do
    local at, carried = landing(i, unit)
    if at > now + way then n = n - carried end
  end
  return n
end

-- When a count ends that may be the one of which an earlier response has told, to end at an instant.
local function sooner(was, reset, slack)
  local ends = frontier + reset
  return was > frontier and was >= ends - slack and min(was, ends) or ends
end

-- Whether tier i counts others apart: it remembers when each unit landed.
local function hasStamps(i)
  local algorithm = plan[5 + units + 6 * (i - 1)]
  return algorithm == LOG or algorithm == WINDOW
end

-- Until when tier i counts others apart.
local function endOthers(i, reset, slack)
  local ends = frontier + plan[8 + units + 6 * (i - 1)]
  return reset > 0 and min(ends, sooner(readings[i][6], reset, slack)) or ends
end

-- Charges n units of tier i for others, until the reset if one was told.
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

-- Has tier i go on counting others apart, as many as the report leaves that was made of a request
-- of n units, admitted at an instant.
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

-- Has the window of tier i reopen at the reset, if all that has landed was counted before it,
-- and else end what was charged for others with this report. Has a request try in any other tier,
-- unless one still may.
local function tellReset(i, since, reset, slack, others)
  local shortest = plan[5 + units + 6 * (i - 1)] == CALENDAR and 79200000000 or plan[8 + units + 6 * (i - 1)]
  local rule, r, from = rules[i], readings[i], frontier + reset - slack - max(0, now - since) -- the report may be as old as its request
  if reset == 0 then return end
  if not rule.reopens then
    if r[17] == 0 or r[17] > frontier then r[17] = sooner(r[17], reset, slack) end
  elseif from > frontier and 2 * slack < shortest then
    local ends = sooner(r[6], reset, slack)
    if r[6] <= frontier then -- none was to come
    elseif r[6] < ends then -- the window of then has ended
      if rule.reopen then rule.reopen() end
    elseif r[15] <= ends then
      from = max(from, r[15])
    end
    r[6], r[8], r[15] = ends, 0, from
  elseif others > 0 and r[6] <= frontier then
    r[6], r[8], r[15] = frontier + reset, rule.used(frontier) - others, 0
  end
end

-- What others have used of tier i and the tier does not count, as far as it is proved by the
-- response to a request of n units, admitted at an instant and in flight for so long.
local function others(i, used, since, n, way)
  local r, window = readings[i], plan[5 + units + 6 * (i - 1) + 3]
  -- What has left its window since the request was sent may have been counted still.
  local own = min(rules[i].used(min(since, frontier)), MOST_USED) + r[7] + left(unitOf[i], way)
  local short = r[3]
  if since < r[1] and used > r[2] then short = short - n end -- it was counted later
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
      -- The report of a request that was admitted after one had tried is the truth, but for later
      -- units that have landed.
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
