-- pool.lua: returned reservations. Units: µs.
-- Uses: flight.lua, need.lua, plan.lua, rule.lua, state.lua.
-- Gives: LENT, POOLED, pool, takeBack, addToPool, dropPooled, findPooled, takePooled.
--
-- Returned reservations stay charged in every tier until their time has passed. So the next request of no
-- larger cost may take one over, or a part of it, which is exact for any mix of algorithms as long as the request is in
-- flight for no longer. A request with a longer guard must be sent so much sooner, see LENT. An entry
-- is one instant, a guard and the sum of the costs of all returned reservations with these two; or a
-- run of instants at the pace of a bucket, each with the same cost. So all that a crowd of callers had
-- reserved in a bucket is one run once they have left.
--
-- The instants of a run are first + i × step + (part + i × rest) ÷ limit, rounded up, for i from 0 to
-- count - 1. part is any number from least to most, which are in (-limit, 0]. An entry contains them
-- with the opposite sign.

local POOL = 250 -- the most entries, of which the state keeps the number in a byte; further ones are lost
local POOLED = 8 -- numbers of an entry before the cost: first, guard, count, step, rest, limit, -most, -least
local LENT = 2 ^ 32 -- in a reply, before by how much the guard of a returned reservation is shorter than the request's
local MOST_PARTED = 5000000 -- the longest time ahead for which a caller adds the drift of its clock, see clock.go
local MOST_PACED = 2 ^ 20 -- the most instants of a run
local MOST_PARTS = 2 ^ 30 -- the largest limit of a bucket whose reservations form runs

local MOST_DROPPED = 1000 -- the most instants of a call that are taken back when their time has passed

local pool
local takeBack -- the function of cancel.lua, once a call needs it

-- Instant i of an entry.
local function pooledAt(p, i)
  if i == 0 then return p[1] end
  return p[1] + i * p[4] + divMod(i * p[5] - p[7] + p[6] - 1, p[6])
end

-- The index of the first instant of an entry from an instant on, nil if there is none.
local function firstFrom(p, from)
  if p[1] >= from then return 0 end
  local pace = p[4] + p[5] / p[6]
  local i = p[3] > 1 and max(1, (divMod(from - p[1], pace)) - 2) or 1
  while i < p[3] and pooledAt(p, i) < from do i = i + 1 end
  if i < p[3] then return i end
end

-- What is left of an entry from instant i on.
local function restOf(p, i)
  local from = pooledAt(p, i)
  local shift = i * p[5] - (from - p[1] - i * p[4]) * p[6]
  return {from, p[2], p[3] - i, p[4], p[5], p[6], p[7] - shift, p[8] - shift, spread(p, POOLED + 1, POOLED + units)}
end

-- Takes instant i out of entry n, as an entry of its own. Returns that.
local function isolate(n, i)
  local p = pool[n]
  if p[3] == 1 then return p end
  local one = {pooledAt(p, i), p[2], 1, 0, 0, 1, 0, 0, spread(p, POOLED + 1, POOLED + units)}
  if i + 1 < p[3] then pool[#pool + 1] = restOf(p, i + 1) end
  if i > 0 then
    p[3] = i
    pool[#pool + 1] = one
  else
    pool[n] = one
  end
  return one
end

-- The run of entries a and b, if b goes on where a ends at a pace.
local function joinAt(a, b, step, rest, limit)
  local n, distance = a[3], b[1] - a[1]
  local up = distance - n * step -- how many parts of the limit the parts have filled at b
  local most, least = up * limit - n * rest, (up - 1) * limit - n * rest + 1
  if a[3] > 1 then most, least = min(most, -a[7]), max(least, -a[8]) else most, least = min(most, 0), max(least, 1 - limit) end
  if b[3] > 1 then most, least = min(most, -b[7] - n * rest + up * limit), max(least, -b[8] - n * rest + up * limit) end
  if least > most then return nil end
  return {a[1], a[2], n + b[3], step, rest, limit, -most, -least, spread(a, POOLED + 1, POOLED + units)}
end

-- The run of entries a and b, if they form one.
local function joinPooled(a, b)
  if a[2] ~= b[2] or a[3] + b[3] > MOST_PACED or b[1] <= a[1] then return nil end
  for u = 1, units do
    if a[POOLED + u] ~= b[POOLED + u] then return nil end
  end
  local paced = a[3] > 1 and a or b[3] > 1 and b
  if paced then
    if a[3] > 1 and b[3] > 1 and (a[4] ~= b[4] or a[5] ~= b[5] or a[6] ~= b[6]) then return nil end
    return joinAt(a, b, paced[4], paced[5], paced[6])
  end
  for i = 1, plan.deciding do
    local t, n = 5 + units + 6 * (i - 1), a[POOLED + unitOf[i]]
    if isBucket(plan[t]) and plan[t + 2] <= MOST_PARTS then
      local step, rest = mulDiv(n, plan[t + 3], plan[t + 2])
      local run = step > 0 and joinAt(a, b, step, rest, plan[t + 2])
      if run then return run end
    end
  end
end

-- Adds a reservation to the pool. Returns false if the pool is full.
local function addToPool(at, cost)
  for n = 1, #pool do
    local p = pool[n]
    local i = p[2] == guard and firstFrom(p, at)
    if i and pooledAt(p, i) == at and (p[3] == 1 or #pool + 2 <= POOL) then
      local one = isolate(n, i)
      for u = 1, units do one[POOLED + u] = one[POOLED + u] + cost[u] end
      return true
    end
  end
  local entry, n, found = {at, guard, 1, 0, 0, 1, 0, 0, spread(cost, 1, units)}, 1, false
  while n <= #pool do
    local run = joinPooled(pool[n], entry) or joinPooled(entry, pool[n])
    if run then
      table.remove(pool, n)
      entry, n, found = run, 1, true
    else
      n = n + 1
    end
  end
  if #pool >= POOL and not found then return false end
  pool[#pool + 1] = entry
  return true
end

-- Drops what is before an instant. These requests were not sent, so they are taken back.
local function dropPooled(before)
  local dropped = {}
  for n = #pool, 1, -1 do
    local p = pool[n]
    local i = firstFrom(p, before)
    for j = 0, (i or p[3]) - 1 do
      if #dropped < MOST_DROPPED then dropped[#dropped + 1] = {pooledAt(p, j), p[2], p} end
    end
    if not i then table.remove(pool, n) elseif i > 0 then pool[n] = restOf(p, i) end
  end
  if not dropped[1] then return end
  if not takeBack then defineCancel() end
  table.sort(dropped, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
  advance(now)
  for i = 1, #dropped do
    local at, ownGuard, p = spread(dropped[i])
    takeBack(at, ownGuard, {spread(p, POOLED + 1, POOLED + units)}, true)
  end
end

-- The earliest entry with room, from an instant on, for a cost and a guard that is shorter than the
-- request's by slack at most, or by less for a time to come, until which the caller's clock drifts.
-- Also returns the instant, and by how much the guard is shorter. If to is set, the instant is no
-- later. Of one instant, the shortest guard that is not shorter is taken, or else the longest one.
local function findPooled(from, cost, longest, slack, to)
  local found, at, order
  for n = 1, #pool do
    local p = pool[n]
    local spare = p[2] - longest + slack
    local fits = spare >= 0
    for u = 1, units do fits = fits and p[POOLED + u] >= cost[u] end
    local i = fits and firstFrom(p, from)
    local instant = i and pooledAt(p, i)
    if i and instant <= (to or NEVER) and (p[2] >= longest or 1000 * spare >= min(instant - now, MOST_PARTED)) then
      local place = p[2] >= longest and p[2] or NEVER - p[2]
      if not found or instant < at or instant == at and place < order then found, at, order = n, instant, place end
    end
  end
  return found, at, found and max(0, longest - pool[found][2])
end

-- Takes a cost out of the instant of entry n. A full pool loses what is before the instant, and the
-- rest of the cost.
local function takePooled(n, at, cost)
  local i = firstFrom(pool[n], at)
  if i > 0 and #pool >= POOL then pool[n], i = restOf(pool[n], i), 0 end
  local p, left = isolate(n, i), 0
  for u = 1, units do
    p[POOLED + u] = p[POOLED + u] - cost[u]
    left = left + p[POOLED + u]
  end
  if left > 0 and #pool <= POOL then return end
  for i = #pool, 1, -1 do
    if pool[i] == p then return table.remove(pool, i) end
  end
end
