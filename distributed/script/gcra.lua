-- gcra.lua: token bucket, leaky bucket as a meter, and GCRA, all computed as GCRA. Units: µs.
-- Twin: algorithms/gcra.go.
-- Uses: flight.lua, plan.lua, queue.lua.
-- Gives: bucket.
--
-- The bucket is unused again at the theoretical arrival time tat + part/limit. It admits n units
-- while that time is no further ahead than the other units of the bucket take.

local function bucket(unit, limit, window, burst)
  local tat, part

  -- The time after n more units at an instant.
  local function add(tat, part, at, n)
    if tat < at then tat, part = at, 0 end
    local step, rest = mulDiv(n, window, limit)
    tat, part = tat + step, part + rest
    if part >= limit then tat, part = tat + 1, part - limit end
    return min(tat, at + 2 ^ 52), part -- the longest wait, as for a pause
  end

  -- The time after the landing of some slots, and whether the bucket is in use at each landing,
  -- even if each slot lands later by some time.
  local function afterSlots(tat, part, first, last, later)
    local width, busy = slots.width, true
    local cached, step, rest -- units, and how long they take
    for s = (first - 1) * width + 1, (last - 1) * width + 1, width do
      local at, n = slots[s], slots[s + unit]
      if n > 0 then
        if n ~= cached then
          cached, step, rest = n, mulDiv(n, window, limit)
        end
        if tat < at + later then busy = false end
        if tat < at then tat, part = at, 0 end
        tat, part = tat + step, part + rest
        if part >= limit then tat, part = tat + 1, part - limit end
        if tat > at + LATEST then tat = at + LATEST end
      end
    end
    return tat, part, busy
  end

  -- The first instant, now or later, at which no more than free units are missing.
  local function admits(now, tat, part, free)
    if tat < now or tat == now and part == 0 then return now end
    local step, rest = mulDiv(free, window, limit)
    local at = tat - step + (part > rest and 1 or 0)
    return at > now and at or now
  end

  local function fresh(now) return max(now, part > 0 and tat + 1 or tat) end

  local function used(now)
    if tat < now then return 0 end
    local used, rest = mulDiv(tat - now, limit, window)
    return used + ceilMulDiv(rest + part, 1, window)
  end

  return {
    load = function(words, at) tat, part = parse('>I7I7', words, at) end,

    earliest = function(now, n)
      local tat, part, free = tat, part, burst - inFlight[unit] - n
      if free >= 0 and (tat < now or admits(now, tat, part, free) == now) then return now end
      -- Units in flight begin to drain only when they land.
      for i = slots.first, slots.last do
        local lands, carried = landing(i, unit)
        if free >= 0 then
          local at = admits(now, tat, part, free)
          if at <= lands then return at end
        end
        tat, part = add(tat, part, lands, carried)
        free, now = free + carried, lands
      end
      if free < 0 then return NEVER end -- estimates
      return admits(now, tat, part, free)
    end,

    landAll = function(first, last) tat, part = afterSlots(tat, part, first, last, 0) end,

    -- If requests of n units, each charged as soon as this bucket admits it, are spaced evenly: the
    -- instant of the next request and the interval, both in µs plus a fraction with the denominator
    -- limit. They are spaced evenly while the bucket is in use at each landing: all charges then
    -- drain without a gap. A request charged at t lands a guard after t or after the reply, or up
    -- to a resolution later together with others, and finds the bucket as all charges but a burst
    -- leave it.
    pace = function(n)
      if (mulDiv(burst - n, window, limit)) <= max(0, sendFrom - frontier) + guard + resolution then return nil end
      readTo(slots, slots.first, slots.last)
      local at, ahead, busy = afterSlots(tat, part, slots.first, slots.last, resolution)
      if not busy or at >= LATEST then return nil end
      local step, rest = mulDiv(burst - n, window, limit)
      at, ahead = at - step, ahead - rest
      if ahead < 0 then at, ahead = at - 1, ahead + limit end
      return at, ahead, limit, mulDiv(n, window, limit)
    end,

    land = function(at, n) tat, part = add(tat, part, at, n) end,

    used = used,

    forget = function(now, keep)
      if used(now) > keep then tat, part = add(0, 0, now, keep) end
    end,

    -- Takes back the time in which n units from an instant on surely have not drained: without them, the
    -- bucket may have been empty ever since they landed.
    refund = function(now, from, n)
      local step = mulDiv(n, window, limit)
      tat = tat - max(0, min(step - (now - from), tat - now))
    end,

    fresh = fresh,

    expires = function() -- as if all requests landed with the last one
      local lands = lastLanding(unit)
      if not lands then return fresh(0) end
      local step = mulDiv(inFlight[unit], window, limit)
      return min(max(tat, lands) + step + 2, lands + LATEST)
    end,

    words = function() return pack('>I7I7', tat, part) end,
  }
end
