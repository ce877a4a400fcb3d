-- gcra.lua: token bucket, leaky bucket as a meter, and GCRA, told as the last of
-- them. Units: µs. Twin: algorithms/gcra.go.
--
-- The bucket is as if untouched at the theoretical arrival time tat + part/limit.
-- It admits n units while that is no further ahead than the rest of it takes.

local function bucket(unit, limit, window, burst, tat, part)
  -- The time after n more units at an instant.
  local function add(tat, part, at, n)
    if tat < at then tat, part = at, 0 end
    local step, rest = mulDiv(n, window, limit)
    tat, part = tat + step, part + rest
    if part >= limit then tat, part = tat + 1, part - limit end
    return math.min(tat, at + 2 ^ 52), part -- no wait is longer than that of a pause
  end

  -- The first instant, now or later, at which no more than free units are missing.
  local function admits(now, tat, part, free)
    if tat < now or tat == now and part == 0 then return now end
    local step, rest = mulDiv(free, window, limit)
    local at = tat - step + (part > rest and 1 or 0)
    return at > now and at or now
  end

  local function fresh(now) return math.max(now, part > 0 and tat + 1 or tat) end

  local function used(now)
    if tat < now then return 0 end
    local used, rest = mulDiv(tat - now, limit, window)
    return used + ceilMulDiv(rest + part, 1, window)
  end

  return {
    earliest = function(now, n)
      local tat, part, free = tat, part, burst - aloft[unit] - n
      if free >= 0 and admits(now, tat, part, free) == now then return now end
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

    land = function(at, n) tat, part = add(tat, part, at, n) end,

    used = used,

    forget = function(now, keep)
      if used(now) > keep then tat, part = add(0, 0, now, keep) end
    end,

    fresh = fresh,

    expires = function() -- as if all landed with the last
      local lands = lastLanding(unit)
      if not lands then return fresh(0) end
      return 1 + (add(tat, part, lands, aloft[unit]))
    end,

    words = function() return pack('>I7I7', tat, part) end,
  }
end
