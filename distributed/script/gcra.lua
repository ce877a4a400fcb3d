-- gcra.lua: token bucket, leaky bucket as a meter, and GCRA, told as the last of
-- them. Units: µs. Twin: algorithms/gcra.go.
--
-- The bucket is as if untouched at the theoretical arrival time tat + part/limit.
-- It admits n units while that is no further ahead than the rest of it takes.

local function bucket(unit, limit, window, burst, tat, part)
  local step, rest = divMod(window, limit) -- of one unit
  local rule = {}

  -- The time after n more units at an instant.
  local function add(tat, part, at, n)
    if tat < at then tat, part = at, 0 end
    local step, rest = step, rest
    if n ~= 1 then step, rest = mulDiv(n, window, limit) end
    tat, part = tat + step, part + rest
    if part >= limit then return tat + 1, part - limit end
    return tat, part
  end

  -- The first instant, now or later, at which no more than free units are missing.
  local function admits(now, tat, part, free)
    if tat < now or tat == now and part == 0 then return now end
    local step, rest = mulDiv(free, window, limit)
    return max(now, tat - step + (part > rest and 1 or 0))
  end

  function rule.earliest(now, n)
    local tat, part, free = tat, part, burst - aloft[unit] - n
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
    return admits(now, tat, part, free)
  end

  function rule.land(at, n) tat, part = add(tat, part, at, n) end

  function rule.used(now)
    if tat < now then return 0 end
    local used, rest = mulDiv(tat - now, limit, window)
    return used + ceilMulDiv(rest + part, 1, window)
  end

  function rule.fresh(now) return max(now, part > 0 and tat + 1 or tat) end

  function rule.expires() -- as if all landed with the last
    local lands = lastLanding(unit)
    if not lands then return rule.fresh(0) end
    return 1 + (add(tat, part, lands, aloft[unit]))
  end

  function rule.words() return pack('>I7I7', tat, part) end

  return rule
end
