-- fixedwindow.lua: at most limit units in every window of the clock or, for a calendar, in every period
-- of a zone. Units: µs, percent.
-- Twin: algorithms/fixedwindow.go.
-- Uses: flight.lua, plan.lua. Gives: drift, numberOf, startOf, fixedWindow.

local drift -- Unix time less the virtual clock, which never runs backwards

-- The number of the window at an instant by the wall clock.
local function numberOf(at, window, phase) return (divMod(at + drift - phase, window)) end

-- The instant at which a window opens.
local function startOf(index, window, phase) return index * window + phase - drift end

-- index is the number of the window of the last landing, count the units that landed in it, and
-- last the instant of that landing. A calendar passes periodOf(at), which returns the number of a
-- period: its end as Unix time. It also keeps reported, the last reported percentage of the limit,
-- and its window is longer than any period.
local function fixedWindow(unit, limit, window, phase, periodOf)
  local index, count, last, reported
  local rule = {reopens = true}

  -- The number of the window at an instant by the wall clock.
  local function shown(at) return periodOf and periodOf(at) or numberOf(at, window, phase) end

  -- The instant at which a window ends.
  local function endOf(index) return periodOf and index - drift or startOf(index + 1, window, phase) end

  -- Whether the window of a landing has ended by an instant. A wall clock that steps back does not
  -- reopen a window, and a window ends at most one window after the landing.
  local function isOver(at, index, last) return at >= last + window or at >= endOf(index) end

  -- The instant from which on a landing in a window does not count.
  local function closesAt(at, index) return min(endOf(index), at + window) end

  function rule.load(words, at)
    if periodOf then
      index, count, reported, last = parse('>I7I7I7I7', words, at)
    else
      index, count, last = parse('>I7I7I7', words, at)
    end
  end

  -- If the clock has stepped back since the last landing to before the window before, the date was
  -- wrong. The units then count in the window that the clock now shows for that landing.
  function rule.correct()
    if endOf(index) > last + (periodOf and window or 2 * window) then index = shown(last) end
  end

  function rule.earliest(now, n)
    local landed, up = rule.used(now), inFlight[unit]
    if landed + up + n <= limit then return now end
    -- A boundary clears the landed units, but not those in flight across it. If the clock was set
    -- back, a landing before the boundary may delay it.
    local next, i = landed > 0 and closesAt(last, index) or now, slots.first
    local index, last = index, last
    while i <= slots.last do
      local at, carried = landing(i, unit)
      if up + n <= limit and at >= next then break end
      if carried > 0 then
        if isOver(at, index, last) then index = shown(at) end
        if index == NEVER then return NEVER end
        next, last = max(next, closesAt(at, index)), at
      end
      up, i = up - carried, i + 1
    end
    return up + n > limit and NEVER or next -- estimates
  end

  local function turn(at)
    if isOver(at, index, last) then index, count, reported, last = shown(at), 0, 0, at end
  end

  function rule.land(at, n)
    turn(at)
    count, last = count + n, at
  end

  function rule.used(now) return isOver(now, index, last) and 0 or count end

  function rule.fresh(now) return rule.used(now) == 0 and now or closesAt(last, index) end

  function rule.opened(now) return startOf(numberOf(now, window, phase), window, phase) end

  function rule.forget(now, keep)
    if rule.used(now) > keep then count = keep end
  end

  function rule.refund(now, from, n)
    if not isOver(now, index, last) and shown(from) == index then count = count - min(n, count) end
  end

  function rule.expires()
    local lands = lastLanding(unit)
    return lands and closesAt(lands, max(index, shown(lands))) or rule.fresh(0)
  end

  function rule.words()
    return periodOf and pack('>I7I7I7I7', index, count, reported, last) or pack('>I7I7I7', index, count, last)
  end

  -- The last reported percentage, the present one, the use and the end of the period; zeros if the
  -- percentage has not grown.
  function rule.crossed(now)
    turn(now)
    local before, used = reported, count + inFlight[unit] - (estimating[unit] and open[unit] or 0)
    local percent = min(100, (mulDiv(used, 100, limit)))
    if percent <= before then return 0, 0, 0, 0 end
    reported = percent
    return before, percent, used, index
  end

  return rule
end
