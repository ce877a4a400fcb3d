-- weightedwindow.lua: current + previous × the part of the previous window still in view ≤ limit,
-- in windows of the clock. Units: µs.
-- Twin: algorithms/weightedwindow.go.
-- Uses: flight.lua, fixedwindow.lua. Gives: weightedWindow.

-- index is the number of the window of the last landing, current the units that landed in it,
-- previous the units of the window before, and last the instant of that landing.
local function weightedWindow(unit, limit, window, phase)
  local index, current, previous, last
  local rule = {}

  function rule.load(words, at) index, current, previous, last = parse('>I7I7I7I7', words, at) end

  function rule.correct() -- as in fixedwindow.lua
    local n = numberOf(last, window, phase)
    if n < index - 1 then index, current, previous = n, current + previous, 0 end
  end

  -- The counts at an instant.
  local function roll(at, index, current, previous, last)
    local landed = numberOf(last, window, phase)
    if landed < index and at >= last + window then
      index, current, previous = landed, current + previous, 0 -- the clock was set back: they landed in another window
    end
    local to = max(index, numberOf(at, window, phase))
    if to == index then return index, current, previous end
    return to, 0, to == index + 1 and current or 0
  end

  -- When the counts of an instant change next, if nothing lands before.
  local function rolls(at, index, last)
    local closes = startOf(index + 1, window, phase)
    if at < last + window and numberOf(last, window, phase) < index then return min(closes, last + window) end
    return closes
  end

  -- When the units of the previous window weigh no more than free.
  local function leaves(now, index, previous, free)
    if previous <= free then return now end
    return max(now, startOf(index + 1, window, phase) - mulDiv(free, window, previous))
  end

  local function counts(at) return roll(at, index, current, previous, last) end

  function rule.earliest(now, n)
    local index, current, previous = counts(now)
    local last, up, i = last, inFlight[unit], slots.first
    while true do
      local closes, lands = rolls(now, index, last), NEVER -- lands: the first landing after that
      while i <= slots.last do
        local at, carried = landing(i, unit)
        if at >= closes then
          lands = at
          break
        end
        if carried > 0 then
          current, up, last = current + carried, up - carried, at
          closes = rolls(now, index, last)
        end
        i = i + 1
      end
      local free = limit - current - up - n
      if free >= 0 then
        local at = leaves(now, index, previous, free)
        if at < closes then return at end
      end
      if up + n > limit then closes = lands end -- nothing can pass before it lands
      if closes == NEVER then return NEVER end -- estimates
      now = closes
      index, current, previous = roll(now, index, current, previous, last)
    end
  end

  function rule.land(at, n)
    index, current, previous = counts(at)
    current, last = current + n, at
  end

  function rule.used(now)
    local index, current, previous = counts(now)
    local view = min(window, startOf(index + 1, window, phase) - now)
    return current + ceilMulDiv(previous, view, window)
  end

  function rule.forget(now, keep)
    while rule.used(now) > keep do
      index, current, previous = counts(now)
      if previous > 0 then previous = 0 else current = keep end
    end
  end

  function rule.refund(_, from, n)
    local landed = numberOf(from, window, phase)
    if landed == index then current = current - min(n, current) end
    if landed == index - 1 then previous = previous - min(n, previous) end
  end

  function rule.opened(now) return startOf(numberOf(now, window, phase), window, phase) end

  -- When the counts of an instant weigh nothing.
  local function emptyAt(now, index, current, previous, last)
    while current > 0 or previous > 0 do
      now = rolls(now, index, last)
      index, current, previous = roll(now, index, current, previous, last)
    end
    return now
  end

  function rule.fresh(now)
    local index, current, previous = counts(now)
    return emptyAt(now, index, current, previous, last)
  end

  function rule.expires()
    local lands = lastLanding(unit)
    if not lands then return rule.fresh(frontier) end
    local shown = numberOf(lands, window, phase)
    if shown >= index then return startOf(shown + 2, window, phase) end
    local index, current, previous, last = index, current, previous, last -- the clock was set back
    for i = slots.first, slots.last do
      local at, carried = landing(i, unit)
      if carried > 0 then
        index, current, previous = roll(at, index, current, previous, last)
        current, last = current + carried, at
      end
    end
    return emptyAt(last, index, current, previous, last)
  end

  function rule.words() return pack('>I7I7I7I7', index, current, previous, last) end

  return rule
end
