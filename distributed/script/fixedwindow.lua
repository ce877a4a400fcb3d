-- fixedwindow.lua: at most limit units in every window of the clock. Units: µs.
-- Twin: algorithms/fixedwindow.go.
-- Uses: flight.lua. Gives: drift, numberOf, dated, isOver, startOf, closesAt, fixedWindow.

local drift -- Unix time less the virtual clock, which never runs backwards

-- The number of the window at an instant by the wall clock.
local function numberOf(at, window, phase) return (divMod(at + drift - phase, window)) end

-- The number of the window of the last landing. It is the window that the wall clock now shows for
-- last, if the clock has stepped back since, to before the window before: the date was wrong.
local function dated(landed, last, window, phase)
  local n = numberOf(last, window, phase)
  return n < landed - 1 and n or landed
end

-- Whether the window of a landing has ended by an instant. A wall clock that steps back does not
-- reopen a window, and a window ends at most one window after the landing.
local function isOver(at, landed, last, window, phase)
  return at >= last + window or numberOf(at, window, phase) > landed
end

-- The instant at which a window opens.
local function startOf(index, window, phase) return index * window + phase - drift end

-- The instant from which on a landing in a window does not count.
local function closesAt(at, index, window, phase)
  return min(startOf(index + 1, window, phase), at + window)
end

-- index is the number of the window of the last landing, count the units that landed in it, and
-- last the instant of that landing.
local function fixedWindow(unit, limit, window, phase)
  local index, count, last
  local rule = {reopens = true}

  function rule.load(words, at) index, count, last = parse('>I7I7I7', words, at) end

  function rule.correct() index = dated(index, last, window, phase) end

  -- The number of the window of an instant, after a landing in another one.
  local function indexOf(at, landed, last)
    return isOver(at, landed, last, window, phase) and numberOf(at, window, phase) or landed
  end

  function rule.earliest(now, n)
    local landed, up = rule.used(now), inFlight[unit]
    if landed + up + n <= limit then return now end
    -- A boundary clears the landed units, but not those in flight across it. If the clock was set
    -- back, a landing before the boundary may delay it.
    local next, i = landed > 0 and closesAt(last, index, window, phase) or now, slots.first
    local index, last = index, last
    while i <= slots.last do
      local at, carried = landing(i, unit)
      if up + n <= limit and at >= next then break end
      if carried > 0 then
        index, last = indexOf(at, index, last), at
        next = max(next, closesAt(at, index, window, phase))
      end
      up, i = up - carried, i + 1
    end
    return up + n > limit and NEVER or next -- estimates
  end

  function rule.land(at, n)
    index, count, last = indexOf(at, index, last), rule.used(at) + n, at
  end

  function rule.used(now) return isOver(now, index, last, window, phase) and 0 or count end

  function rule.fresh(now)
    return rule.used(now) == 0 and now or closesAt(last, index, window, phase)
  end

  function rule.opened(now) return startOf(numberOf(now, window, phase), window, phase) end

  function rule.forget(now, keep)
    if rule.used(now) > keep then count = keep end
  end

  function rule.expires()
    local lands = lastLanding(unit)
    if not lands then return rule.fresh(0) end
    local shown = numberOf(lands, window, phase)
    if shown >= index then return startOf(shown + 1, window, phase) end
    local index, last = index, last -- the clock was set back
    for i = slots.first, slots.last do
      local at, carried = landing(i, unit)
      if carried > 0 then index, last = indexOf(at, index, last), at end
    end
    return closesAt(last, index, window, phase)
  end

  function rule.words() return pack('>I7I7I7', index, count, last) end

  return rule
end
