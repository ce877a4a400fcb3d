-- weightedwindow.lua: current + previous × the part of the previous window still
-- in view ≤ limit, in windows of the clock. Units: µs.
-- Twin: algorithms/weightedwindow.go.

-- The units of a window and of the one before it, seen from a later window.
local function roll(to, index, current, previous)
  if to <= index then return index, current, previous end
  return to, 0, to == index + 1 and current or 0
end

local function weightedWindow(unit, limit, window, phase, index, current, previous)
  local rule = {}

  local function counts(at)
    return roll(indexOf(at, index, window, phase), index, current, previous)
  end

  -- How much of the previous window may still be in view for its units to weigh no
  -- more than free.
  local function inView(free, previous)
    if previous <= free then return window end
    return (mulDiv(free, window, previous))
  end

  function rule.earliest(now, n)
    local index, current, previous = counts(now)
    local up, i = aloft[unit], slots.first
    while true do
      local closes = startOf(index + 1, window, phase)
      local free = limit - current - up - n
      if free >= 0 then
        local at = math.max(now, closes - inView(free, previous))
        if at < closes then return at end
      end
      local next = index + 1
      if i > slots.last and up + n > limit then return NEVER end -- estimates
      while i <= slots.last do
        local at, carried = landing(i, unit)
        if at >= closes then
          if up + n > limit then -- nothing can pass before it lands
            next = math.max(next, indexOf(at, index, window, phase))
          end
          break
        end
        current, up, i = current + carried, up - carried, i + 1
      end
      index, current, previous = roll(next, index, current, previous)
      now = startOf(index, window, phase)
    end
  end

  function rule.land(at, n)
    index, current, previous = counts(at)
    current = current + n
  end

  function rule.used(now)
    local index, current, previous = counts(now)
    local view = math.min(window, startOf(index + 1, window, phase) - now)
    return current + ceilMulDiv(previous, view, window)
  end

  function rule.forget(now, keep)
    while rule.used(now) > keep do
      index, current, previous = counts(now)
      if previous > 0 then previous = 0 else current = keep end
    end
  end

  function rule.fresh(now)
    local index, current, previous = counts(now)
    if current > 0 then return startOf(index + 2, window, phase) end
    if previous > 0 then return startOf(index + 1, window, phase) end
    return now
  end

  function rule.expires()
    local lands = lastLanding(unit)
    if not lands then return rule.fresh(frontier) end
    return startOf(indexOf(lands, index, window, phase) + 2, window, phase)
  end

  function rule.words() return pack('>I7I7I7', index, current, previous) end

  return rule
end
