-- learnedrate.lua: a bucket whose rate is learned from refusals. Units: µs, and rates in millionths of a unit
-- per window.
-- Twin: algorithms/learned.go, which explains the method.
-- Uses: flight.lua.
-- Gives: learnedRate.

local MILLION = 1000000
local RECOVERY = 45000000
local FEWEST = 100
local REFUSED = 96
local REFUSED_SOON = 86
local SHADOW_UNITS = 2
local SHADOW = 25000
local MOST_SHADOW = 1000000
local BACK_STEPS = 8
local LEAST_GAP = 10
local FALL = 5000000
local E_FOLD = 10000000
local FARTHEST = 20000000
local LOW_PART = 400000
local REST_PART = 206299
local REST_AFTER = 60000000
local ENOUGH_UNITS = 2000
local PRIOR_UNITS = 20
local MOST_NOISE = 100000
local MOST_CREDIT = 3000000
local MOST_LIMIT = 1000000000000 -- MaxLimit

local TAT = 1 -- the words
local BAD = 2
local SINCE_BAD = 3 -- units
local SINCE = 4
local CREDIT = 5
local LOW_UNITS = 6
local LOW_REFUSALS = 7

-- extra contains the bounds: least × 2^24 + most.
local function learnedRate(unit, limit, micros, burst, extra)
  local w -- the words
  local least, most = divMod(extra, 2 ^ 24)
  local window = micros * MILLION
  limit, least, most = limit * MILLION, least * MILLION, most * MILLION
  if least == 0 then least = max(1, (divMod(limit, 100))) end
  local faster = max(1, min((divMod(micros, E_FOLD / MILLION)), (divMod(limit, 8))))
  local rest = max(REST_AFTER, 4 * micros)

  local function toRecover(bad) return max(FEWEST, min((mulDiv(bad, RECOVERY, window)), MOST_LIMIT)) end

  local function progress(bad, units) return min((mulDiv(units, MILLION, toRecover(bad))), FARTHEST) end

  local function rateAt(bad, units)
    if bad == 0 then return min(most, limit + min(most, (mulDiv(units, faster, 1)))) end
    local x = progress(bad, units) - MILLION
    local far = max(x, -x)
    local cube = divMod((divMod(x * x, MILLION)) * far, MILLION)
    local change = mulDiv(bad, cube, FALL)
    return max(least, min(most, x < 0 and bad - change or bad + change))
  end

  local function drain(n, rate) return min(ceilMulDiv(n, window, rate), LATEST) end

  local function atRest(now)
    local bad, units = w[BAD], w[SINCE_BAD]
    if w[TAT] == 0 or now - w[TAT] < rest then return bad, units end
    local rate = rateAt(bad, units)
    if bad == 0 and rate == limit then return bad, units end
    bad = max(bad, rate)
    if rate > (divMod(bad, 10)) * 9 then units = mulDiv(toRecover(bad), REST_PART, MILLION) end
    return bad, units
  end

  local function present() return rateAt(w[BAD], w[SINCE_BAD]) end

  local function grows(rate)
    if w[BAD] == 0 then return rate < most end
    return progress(w[BAD], w[SINCE_BAD]) < FARTHEST
  end

  local function noise()
    local refusals = max(0, w[LOW_REFUSALS] - MILLION)
    return refusals, min(MILLION, (divMod(refusals, w[LOW_UNITS] + PRIOR_UNITS)))
  end

  local function tolerate()
    local refusals, part = noise()
    w[CREDIT] = min(MOST_CREDIT, refusals, w[CREDIT] + min(3 * part, MOST_NOISE))
  end

  local function isLow(n)
    return w[BAD] > 0 and w[SINCE_BAD] >= LEAST_GAP * n and progress(w[BAD], w[SINCE_BAD]) < LOW_PART
  end

  local function unitsAt(bad, units, ago)
    local step, rest = divMod(ago, BACK_STEPS), 0
    local middle = divMod(step, 2)
    for _ = 1, BACK_STEPS do
      local half = mulDiv(rateAt(bad, units), middle, window)
      local sent, part = mulDiv(rateAt(bad, max(0, units - half)), step, window)
      rest = rest + part
      if rest >= window then sent, rest = sent + 1, rest - window end
      units = max(0, units - sent)
    end
    return units
  end

  local function sendOne(now, n)
    local bad, units = atRest(now)
    if bad ~= w[BAD] then w[SINCE] = 0 end
    w[BAD], w[SINCE_BAD] = bad, units
    local rate = rateAt(bad, units)
    local limited = n <= burst and w[TAT] > 0 and now <= w[TAT] - drain(burst - n, rate) + drain(n, rate)
    w[TAT] = min(max(w[TAT], now) + drain(n, rate), now + LATEST)
    tolerate()
    if isLow(n) then
      w[LOW_UNITS] = w[LOW_UNITS] + 1
      if w[LOW_UNITS] > ENOUGH_UNITS then
        w[LOW_UNITS], w[LOW_REFUSALS] = divMod(w[LOW_UNITS], 2), (divMod(w[LOW_REFUSALS], 2))
      end
    end
    if limited and grows(rate) then w[SINCE_BAD] = units + n end
  end

  local function used(now)
    if w[TAT] <= now then return 0 end
    return min(burst, ceilMulDiv(w[TAT] - now, present(), window))
  end

  return {
    learns = true,

    load = function(words, at) w = {parse('>I7I7I7I7I7I7I7', words, at)} end,

    earliest = function(now, n)
      if n > burst then return NEVER end
      return max(now, w[TAT] - drain(burst - n, rateAt(atRest(now))))
    end,

    -- Counts requests of n units as they are admitted. The rate may change with each.
    send = function(now, n, count)
      for _ = 1, count do sendOne(now, n) end
    end,

    refuse = function(now, admitted, n)
      local since, lowest = w[SINCE], rateAt(w[BAD], 0)
      if since > 0 and admitted - since <= drain(SHADOW_UNITS * n, lowest) + SHADOW then return true end
      local soon = since > 0 and ((mulDiv(w[SINCE_BAD], admitted - since, max(1, now - since))) < LEAST_GAP * n
        or admitted - since <= drain(LEAST_GAP * n, lowest) + SHADOW)
      if isLow(n) and not soon then w[LOW_REFUSALS] = w[LOW_REFUSALS] + MILLION end
      if w[CREDIT] >= MILLION then
        w[CREDIT] = w[CREDIT] - MILLION
        return true
      end
      local rate, part = present(), soon and REFUSED_SOON or REFUSED
      local before = rateAt(w[BAD], unitsAt(w[BAD], w[SINCE_BAD], max(0, min(now, w[TAT]) - admitted)))
      local bad = max(least, (divMod(before, 100)) * part)
      local slower = rateAt(bad, 0)
      w[BAD], w[SINCE_BAD], w[SINCE], w[CREDIT] = bad, 0, now, min(MOST_CREDIT, (noise()))
      if rate > before and rate > slower then
        w[SINCE] = now + min(MOST_SHADOW, (mulDiv(MOST_SHADOW, rate - before, rate - slower)))
      end
      w[TAT] = now + min(max(ceilMulDiv(max(0, w[TAT] - now), rate, slower), drain(burst, slower)), LATEST)
      return not soon
    end,

    hasLearned = function() return w[BAD] > 0 or w[SINCE_BAD] > 0 end,

    unlearn = function()
      local tat, rate = w[TAT], present()
      if tat > frontier then tat = frontier + mulDiv(tat - frontier, rate, limit) end
      w = {tat, 0, 0, 0, 0, 0, 0}
    end,

    -- The present rate as a limit and a window.
    rate = function() return rateAt(atRest(frontier)), window end,

    land = function() end, -- the units count since they were admitted

    landAll = function() end,

    used = used,

    forget = function(now, keep)
      if used(now) > keep then w[TAT] = now + drain(keep, present()) end
    end,

    refund = function(now, from, n)
      if now <= w[TAT] - drain(max(0, burst - n), present()) then w[SINCE_BAD] = max(0, w[SINCE_BAD] - n) end
      w[TAT] = w[TAT] - max(0, min(drain(n, present()) - max(0, now - from), w[TAT] - now))
    end,

    fresh = function(now) return max(now, w[TAT]) end,

    expires = function() return w[TAT] end,

    words = function() return pack('>I7I7I7I7I7I7I7', spread(w, 1, 7)) end,
  }
end
