-- gcra.lua: token bucket, leaky bucket as a meter, and GCRA, told as the last of
-- them. Units: µs. Twin: algorithms/gcra.go.
--
-- The bucket is as if untouched at the theoretical arrival time tat + part/limit.
-- It admits n units while that is no further ahead than the rest of it takes.

local function bucket(unit, limit, window, burst)
  local tat, part

  -- The time after n more units at an instant.
  local function add(tat, part, at, n)
    if tat < at then tat, part = at, 0 end
    local step, rest = mulDiv(n, window, limit)
    tat, part = tat + step, part + rest
    if part >= limit then tat, part = tat + 1, part - limit end
    return min(tat, at + 2 ^ 52), part -- no wait is longer than that of a pause
  end

  -- The time after all that lands with some slots, and whether the bucket is never full then,
  -- even if each lands a little later.
  local function afterSlots(tat, part, first, last, later)
    local width, busy = slots.width, true
    local of, step, rest -- units, and how long they take
    for s = (first - 1) * width + 1, (last - 1) * width + 1, width do
      local at, n = slots[s], slots[s + unit]
      if n > 0 then
        if n ~= of then
          of, step, rest = n, mulDiv(n, window, limit)
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
      local tat, part, free = tat, part, burst - aloft[unit] - n
      if free >= 0 and (tat < now or admits(now, tat, part, free) == now) then return now end
      -- What is on its way begins to drain only when it lands.
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

    -- If requests of n units, charged each as soon as this bucket admits it, come evenly, the
    -- instant of the next and the time between two. Instants and times are a number of µs and
    -- limit-ths of one more. They do as long as the bucket is never full when something lands:
    -- then all that was ever charged drains without a gap. What is charged at an instant t
    -- lands a guard after that or the reply, or up to a grain later with others, and finds the bucket as full as
    -- all but a burst leave it.
    pace = function(n)
      if (mulDiv(burst - n, window, limit)) <= max(0, sent - frontier) + guard + grain then return nil end
      readTo(slots, slots.first, slots.last)
      local at, ahead, busy = afterSlots(tat, part, slots.first, slots.last, grain)
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

    fresh = fresh,

    expires = function() -- as if all landed with the last
      local lands = lastLanding(unit)
      if not lands then return fresh(0) end
      local step = mulDiv(aloft[unit], window, limit)
      return min(max(tat, lands) + step + 2, lands + LATEST)
    end,

    words = function() return pack('>I7I7', tat, part) end,
  }
end
