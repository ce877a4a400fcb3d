-- tail.lua: the tail, which is the last runs of reservations while they are in the future and far
-- apart. Units: µs.
-- Uses: calendar.lua, fixedwindow.lua, flight.lua, pause.lua, plan.lua, pool.lua, save.lua,
-- state.lua.
-- Gives: tail, newTail.
-- Sets: drift, guard, sendFrom.
--
-- The tail is not charged permanently: each call that needs the resulting charges computes them
-- anew and drops them. So a reservation that is returned at the end leaves no trace, and the end
-- moves back.
--
-- A run is its instant, the earliest time of sending, its guard, the number of requests, and the
-- cost of each. If runs come so close that the end matters little, all are charged permanently, and
-- a call costs no more than without a tail.

local TAIL = 64 -- the most runs

local tail -- the functions below, and the runs of the tail; nil if this call has no tail

local function newTail(runs)
  local self = {runs = runs, closed = false} -- closed: this call adds no more runs

  local function fits(amounts, i, cost)
    for u = 1, units do
      if amounts[i + u] < cost[u] then return false end
    end
    return true
  end

  -- Makes save write the tiers and the slots as they are now, without the tail.
  local function keepBase() self.base = {settled()} end

  local function replay(r)
    local ownGuard, replyAt = guard, sendFrom
    sendFrom, guard = r[2], r[3]
    charge(r[1], {spread(r, RUN + 1, RUN + units)}, r[4])
    sendFrom, guard = replyAt, ownGuard
  end

  -- Whether a tail is possible: a charge then changes only what keepBase keeps.
  function self.isPossible()
    return not self.closed and pause <= now and not probe and not estimates and #readings == 0 and #calendars == 0
  end

  -- Charges permanently the runs whose instant has come, or all. If the clock has stepped back
  -- since, the runs count in the windows of the clock at their decision.
  function self.commit(all)
    local runs, later, presentDrift = self.runs, {}, drift
    drift, all = lengths.drift, all or not self.isPossible()
    for i = 1, #runs do
      if all or runs[i][1] <= now then replay(runs[i]) else later[#later + 1] = runs[i] end
    end
    self.runs, drift = later, presentDrift
  end

  -- Charges the tail for this call, and keeps the state without it for save.
  function self.chargeRuns()
    local runs = self.runs
    if not runs[1] then return end
    advance(now)
    keepBase()
    for i = 1, #runs do replay(runs[i]) end
  end

  -- Makes all charges permanent.
  function self.flush()
    if self.runs[1] then self.runs, self.base, self.closed = {}, nil, true end
  end

  -- Adds a run, which the caller then charges behind the frontier.
  function self.add(at, cost, count)
    local runs = self.runs
    local last = runs[#runs]
    local joins = last and last[1] == at
    if self.isPossible() and (joins or at > frontier + guard) then
      local from = max(at, sendFrom)
      if not self.base then keepBase() end
      if joins and last[2] == from and last[3] == guard and fits(last, RUN, cost) and fits(cost, 0, {spread(last, RUN + 1, RUN + units)}) then
        last[4] = last[4] + count
      else
        runs[#runs + 1] = {at, from, guard, count, spread(cost, 1, units)}
        if #runs > TAIL then self.flush() end
      end
    else
      self.flush()
    end
  end

  -- For how long the requests of a run are in flight.
  local function timeInFlight(r) return r[3] > 0 and r[2] + r[3] - r[1] or 0 end

  -- Takes a reservation out, which moves no other. Returns whether it was there.
  function self.take(at, ownGuard, cost)
    local runs = self.runs
    for i = #runs, 1, -1 do
      local r = runs[i]
      if r[1] < at then return false end
      if r[1] == at and timeInFlight(r) == ownGuard and fits(r, RUN, cost) and fits(cost, 0, {spread(r, RUN + 1, RUN + units)}) then
        r[4] = r[4] - 1
        if r[4] == 0 then table.remove(runs, i) end
        return true
      end
    end
    return false
  end

  -- Takes a reservation off the end, and then those at the new end that are in the pool. Returns
  -- whether the reservation was there.
  function self.withdraw(at, cost)
    local runs = self.runs
    if not runs[1] or runs[#runs][1] ~= at or not self.take(at, guard, cost) then return false end
    while runs[1] do
      local r = runs[#runs]
      local own = {spread(r, RUN + 1, RUN + units)}
      local ownGuard = timeInFlight(r)
      local pooled = findPooled(r[1], own, ownGuard, 0, r[1])
      if not pooled or pool[pooled][2] ~= ownGuard then return true end
      takePooled(pooled, r[1], own)
      self.take(r[1], ownGuard, own)
    end
    return true
  end

  tail = self
  return self
end
