-- tail.lua: the last runs of reservations, as long as they are ahead of time and apart. They
-- are not charged for good: each call that has to know what they leave charges them anew, and
-- forgets it. So what is given back at the end was never there, and the end moves back. Units: µs.
--
-- A run is its instant, when it is sent at the earliest, its guard, how many requests it is, and
-- what each costs. Where runs come so close that to be the last matters little, all are
-- charged for good, and a call costs no more than without a tail.

local TAIL = 8 -- runs at most

local trail -- the functions below, and the runs of the tail; nil if there is none in this call

local function newTrail(runs)
  local self = {tail = runs, closed = false} -- closed: this call adds no more

  local function fits(amounts, i, cost)
    for u = 1, units do
      if amounts[i + u] < cost[u] then return false end
    end
    return true
  end

  -- What is saved of the tiers and the slots is what they are now.
  local function keepBase() self.base = {settled()} end

  local function replay(r)
    local way, reply = guard, sent
    sent, guard = r[2], r[3]
    charge(r[1], {spread(r, RUN + 1, RUN + units)}, r[4])
    sent, guard = reply, way
  end

  -- Whether there may be a tail: all that a charge changes is what is kept.
  function self.may()
    return not self.closed and pause <= now and not probe and not estimates and #readings == 0 and #calendars == 0
  end

  -- Charges for good what has come of the tail, or all. What was decided by a clock that has
  -- stepped back since is in the windows of then.
  function self.commit(all)
    local tail, rest, after = self.tail, {}, drift
    drift, all = lengths.drift, all or drift ~= lengths.drift or not self.may()
    for i = 1, #tail do
      if all or tail[i][1] <= now then replay(tail[i]) else rest[#rest + 1] = tail[i] end
    end
    self.tail, drift = rest, after
  end

  -- Charges the tail, and keeps what is without it.
  function self.look()
    local tail = self.tail
    if not tail[1] then return end
    advance(now)
    keepBase()
    for i = 1, #tail do replay(tail[i]) end
  end

  -- Has all that is charged be so for good.
  function self.flush()
    if self.tail[1] then self.tail, self.base, self.closed = {}, nil, true end
  end

  -- Adds a run that is to be charged behind the frontier.
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

  -- Takes a booking of the last instant off the end. Answers whether it was there.
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

  -- Does, and takes off what was given back in front of it.
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
