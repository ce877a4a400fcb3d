-- tail.lua: the tail, which is the last runs of reservations while they are in the future and far
-- apart. Units: µs.
-- Uses: charge, advance, settled, take. Gives: trail, newTrail.
--
-- The tail is not charged permanently: each call that needs the resulting charges computes them
-- anew and drops them. So a reservation that is returned at the end leaves no trace, and the end
-- moves back.
--
-- A run is its instant, the earliest time of sending, its guard, the number of requests, and the
-- cost of each. If runs come so close that the end matters little, all are charged permanently, and
-- a call costs no more than without a tail.

local TAIL = 8 -- the most runs

local trail -- the functions below, and the runs of the tail; nil if this call has no tail

local function newTrail(runs)
  local self = {tail = runs, closed = false} -- closed: this call adds no more runs

  local function fits(amounts, i, cost)
    for u = 1, units do
      if amounts[i + u] < cost[u] then return false end
    end
    return true
  end

  -- Makes save write the tiers and the slots as they are now, without the tail.
  local function keepBase() self.base = {settled()} end

  local function replay(r)
    local way, reply = guard, sent
    sent, guard = r[2], r[3]
    charge(r[1], {spread(r, RUN + 1, RUN + units)}, r[4])
    sent, guard = reply, way
  end

  -- Whether a tail is possible: a charge then changes only what keepBase keeps.
  function self.may()
    return not self.closed and pause <= now and not probe and not estimates and #readings == 0 and #calendars == 0
  end

  -- Charges permanently the runs whose instant has come, or all. If the clock has stepped back
  -- since, the runs count in the windows of the clock at their decision.
  function self.commit(all)
    local tail, rest, after = self.tail, {}, drift
    drift, all = lengths.drift, all or drift ~= lengths.drift or not self.may()
    for i = 1, #tail do
      if all or tail[i][1] <= now then replay(tail[i]) else rest[#rest + 1] = tail[i] end
    end
    self.tail, drift = rest, after
  end

  -- Charges the tail for this call, and keeps the state without it for save.
  function self.look()
    local tail = self.tail
    if not tail[1] then return end
    advance(now)
    keepBase()
    for i = 1, #tail do replay(tail[i]) end
  end

  -- Makes all charges permanent.
  function self.flush()
    if self.tail[1] then self.tail, self.base, self.closed = {}, nil, true end
  end

  -- Adds a run, which the caller then charges behind the frontier.
  function self.add(at, cost, count)
    local tail = self.tail
    local last = tail[#tail]
    local joins = last and last[1] == at
    if self.may() and (joins or at > frontier + guard) then
      local after = max(at, sent)
      if not self.base then keepBase() end
      if joins and last[2] == after and last[3] == guard and fits(last, RUN, cost) and fits(cost, 0, {spread(last, RUN + 1, RUN + units)}) then
        last[4] = last[4] + count
      else
        tail[#tail + 1] = {at, after, guard, count, spread(cost, 1, units)}
        if #tail > TAIL then self.flush() end
      end
    else
      self.flush()
    end
  end

  -- Takes a reservation at the last instant off the end. Returns whether it was there.
  local function takeLast(at, way, cost)
    local tail = self.tail
    for i = #tail, 1, -1 do
      local r = tail[i]
      if r[1] ~= at then return false end
      if r[3] == way and fits(r, RUN, cost) and fits(cost, 0, {spread(r, RUN + 1, RUN + units)}) then
        r[4] = r[4] - 1
        if r[4] == 0 then table.remove(tail, i) end
        return true
      end
    end
    return false
  end

  -- Takes a reservation off the end, and then those at the new end that are in the pool. Returns
  -- whether the reservation was there.
  function self.withdraw(at, cost)
    if not takeLast(at, guard, cost) then return false end
    local tail = self.tail
    while tail[1] do
      local r, lent = tail[#tail], nil
      local own = {spread(r, RUN + 1, RUN + units)}
      for i = #pool, 1, -1 do
        local p = pool[i]
        if p[1] == r[1] and p[2] == r[3] and fits(p, 2, own) then lent = i end
      end
      if not lent then return true end
      take(lent, own)
      takeLast(r[1], r[3], own)
    end
    return true
  end

  trail = self
  return self
end
