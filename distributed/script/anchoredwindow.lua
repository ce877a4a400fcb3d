-- anchoredwindow.lua: at most limit units in the window that opens with the first
-- request. Units: µs. Twin: algorithms/anchoredwindow.go.
--
-- The window closes at lo at the earliest, a window after its first request was
-- admitted, and at hi at the latest, a window after it was surely open. Only reports of
-- the provider prove that here, if there is a guard: until one does, any request may have
-- opened the window, the last too, and the rolling bound is kept. What lands from lo on
-- may have opened another window.

local OPENING = NEVER -- the hi of a window that may not be open

local function anchoredWindow(unit, limit, window, precision)
  local rolling = slidingWindow(unit, limit, window, precision)
  local groups, lo, hi
  local rule = {land = rolling.land, forget = rolling.forget, reopens = true}

  function rule.load(words, at, groupsAt)
    rolling.load(words, at, groupsAt)
    groups = rolling.groups
    rule.groups = groups
    lo, hi = parse('>I7I7', words, at + 14)
  end

  -- When the last window that may be open has closed, if the last request lands at an
  -- instant.
  local function closes(last)
    return last < lo and min(hi, last + window) or last + window
  end

  -- The same of what has landed; now if that is nothing.
  local function closed(now)
    if groups.first > groups.last then return now end
    return closes(groups[record(groups, groups.last) + 1])
  end

  function rule.earliest(now, n)
    if estimated[unit] and open[unit] > 0 then return rolling.earliest(now, n) end -- nobody knows when it lands
    local last = lastLanding(unit)
    local opens = last and max(last, closes(last)) or max(now, closed(now))
    return min(opens, rolling.earliest(now, n))
  end

  function rule.depart(at)
    if aloft[unit] == 0 and closed(at) <= at then
      lo, hi = at + window, OPENING
      rolling.clear()
    end
  end

  -- A window was open by an instant, as the response to a request proves that was admitted at
  -- since: this one, unless that was before it.
  function rule.prove(since, by)
    if since >= lo - window then hi = min(hi, max(lo, by + window)) end
  end

  -- The provider's window has ended, and nobody knows when the next one opens: what is on its
  -- way may open it, and so may what has landed since that end was told.
  function rule.reopen() lo, hi = NEVER, OPENING end

  function rule.used(now)
    if closed(now) <= now and aloft[unit] == 0 then return 0 end
    return rolling.used(now)
  end

  function rule.fresh(now) return max(now, closed(now)) end

  function rule.expires(resets)
    if resets then return rolling.expires() end -- it may be reopened
    local last = lastLanding(unit)
    return last and closes(last) or closed(0)
  end

  function rule.words() return rolling.words() .. pack('>I7I7', lo, hi) end

  return rule
end
