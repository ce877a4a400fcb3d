-- fixedwindow.lua: at most limit units in every window of the clock. Units: µs.
-- Twin: algorithms/fixedwindow.go.

local drift -- Unix time less the clock that never runs backwards

-- The number of the window of an instant, but never less than least: a wall clock
-- that steps back does not reopen a window.
local function indexOf(at, least, window, phase)
  return math.max(least, (divMod(at + drift - phase, window)))
end

-- The instant at which a window opens.
local function startOf(index, window, phase) return index * window + phase - drift end

-- index is the number of the current window, count the units that landed in it.
local function fixedWindow(unit, limit, window, phase, index, count)
  local rule = {}

  function rule.earliest(now, n)
    local current, up = indexOf(now, index, window, phase), aloft[unit]
    if rule.used(now) + up + n <= limit then return now end
    -- A boundary clears what has landed, but not what is on its way across it.
    local next, i = current + 1, slots.first
    while up + n > limit do
      if i > slots.last then return NEVER end -- estimates
      local at, carried = landing(i, unit)
      up, i = up - carried, i + 1
      next = math.max(next, indexOf(at, current, window, phase) + 1)
    end
    return startOf(next, window, phase)
  end

  function rule.land(at, n)
    count = rule.used(at) + n
    index = indexOf(at, index, window, phase)
  end

  function rule.used(now)
    return indexOf(now, index, window, phase) > index and 0 or count
  end

  function rule.fresh(now)
    return rule.used(now) == 0 and now or startOf(index + 1, window, phase)
  end

  function rule.opened(now) return startOf(indexOf(now, index, window, phase), window, phase) end

  function rule.forget(now, keep)
    if rule.used(now) > keep then count = keep end
  end

  function rule.expires()
    local lands = lastLanding(unit)
    if not lands then return rule.fresh(0) end
    return startOf(indexOf(lands, index, window, phase) + 1, window, phase)
  end

  function rule.words() return pack('>I7I7', index, count) end

  return rule
end
