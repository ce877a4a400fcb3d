-- line.lua: the line of processes whose requests go later than soon. Units: µs. Go: attempt.go.
-- Uses: call.lua, convert.lua, flight.lua, plan.lua, reserve.lua, rule.lua, state.lua.
-- Gives: line, bundledUntil, lineEnd, lineFront, lineOpen, lineUntil, the constants below.
-- Sets: cursor.
--
-- Nothing is reserved more than NEAR ahead. A process whose time is later receives a turn, and asks
-- again shortly before that time. A turn charges nothing. It is a place in the line, and how long its
-- requests take. A request is behind the open turns before its place: those that were neither taken nor
-- given back. Places are numbered, so a turn that becomes longer, because more callers come, delays those
-- behind it.

local NEAR = 1500000 -- how far ahead requests are reserved
local IDLE = 250000 -- requests that go so soon need no turn
local FAR = 4000000 -- requests are reserved behind others that are so far ahead
local AHEAD = 750000 -- how long before its time a process asks again
local MOST_PASSED = 1000000 -- how far before the front a place may be; the first one of a line is the instant at which it began
local BUNDLED = 10000000 -- how long after the last call of a bundle requests do not stand in line: they would be behind its requests forever
local OVER = 1000000 -- how long the line lasts after its last turn

local lineEnd, lineFront -- the place behind the last turn, and the one behind the last that was taken
local lineOpen -- how long the open turns between them take
local lineUntil -- when the last turn should end
local bundledUntil -- until when the quota is also one of a bundle, whose requests do not stand in line

-- How long a window of tier i keeps others waiting.
local function spanOf(i)
  local t = 5 + units + 6 * (i - 1)
  if plan[t] == CALENDAR then return plan[t + 4] end
  return plan[t] == FIXED and plan[t + 3] or plan[t + 3] + guard
end

-- For how long n units keep others waiting in tier i.
local function timeIn(i, n)
  local t = 5 + units + 6 * (i - 1)
  if rules[i].learns then
    local rate, window = rateOf(i)
    return ceilMulDiv(n, window, rate)
  end
  if not isBucket(plan[t]) then return ceilMulDiv(n, spanOf(i), plan[t + 2]) end
  local own = ceilMulDiv(n, plan[t + 3], plan[t + 2])
  return max(own, ceilMulDiv(own + guard, 1, max(1, (divMod(capacity[i], n))))) -- a bucket holds so many requests, and drains when they have landed
end

-- The instant at which a request goes that tier i would admit at an instant, behind turns.
local function behindTurns(i, n, at, turns)
  if turns == 0 or at >= LATEST then return at end
  if drains(plan[5 + units + 6 * (i - 1)]) then return min(LATEST, at + turns) end
  local rounds, rest = divMod((divMod(turns, timeIn(i, n))), max(1, (divMod(capacity[i], n))))
  return min(LATEST, max(at, admits(i, (rest + 1) * n)) + rounds * spanOf(i))
end

-- The time of a request that tier i would admit at an instant, for a caller with a place in the line,
-- or with none, which is at its end.
local function timeInLine(i, n, at, place)
  local turns = lineOpen
  if place and place < lineEnd then turns = mulDiv(max(0, place - lineFront), lineOpen, lineEnd - lineFront) end
  return behindTurns(i, n, at, turns)
end

-- How long count requests and those behind them in the call take, a turn at most.
local function timeOfTurn(i, n, count, turnLength)
  local each, at = timeIn(i, n), cursor
  local length = min(LATEST, count * each)
  while length < turnLength and at <= #arguments do
    local more = arguments[at] + 0
    local from = at + (more < 0 and 5 or 2)
    if more > 0 then
      local other = arguments[from + unitOf[i] - 1] + 0
      if other > 0 then length = min(LATEST, length + more * timeIn(i, other)) end
    end
    at = more == 0 and from or from + plan.ownUnits
  end
  return max(each, min(length, turnLength))
end

local line = {} -- the functions of a call
local lined -- whether this call takes part in the line
local place, length -- the turn of the caller; place is nil if it has none
local took -- whether the requests of this call go in the caller's turn
local near, turnLength -- when the reply arrives, and how long a turn is

-- Reads the caller's turn, if the arguments have one.
function line.begin(replyAt, ownLength)
  lined = cursor < #arguments and arguments[cursor] + 0 == 0 and arguments[cursor + 1] + 0 < 0
  if not lined then return end
  cursor, took, near, turnLength = cursor + 1, false, replyAt, ownLength
  place, length = -1 - argument(), argument()
  if length == 0 or place >= lineEnd or place < lineFront - MOST_PASSED then place, length = nil, 0 end -- it is of a line that is over
  reply[9], reply[10] = place or 0, length
end

-- Returns whether a request goes later than soon, and then when, and the tier that decides. Gives the
-- caller a turn, unless it has one or the request is too late.
function line.wait(cost, spare, count, at, what, within)
  if not lined or at >= LATEST or mixedUntil > now or bundledUntil > now or frontier > now + FAR then return false, at, what end
  local _, i = nil, what
  if i < 1 then _, _, i = reserving.roomFor(cost, spare, turnLength, {}, 0) end
  local n, soon = i and cost[unitOf[i]], NEAR
  local due = i and timeInLine(i, n, at, took and lineFront or place)
  if place and place < lineFront then soon = NEAR + 250000 elseif lineOpen > 0 and not place and not took then soon = AHEAD end
  if not i or due <= near + soon then return false, at, what end
  if within == -1 or within >= 0 and due - now <= within then
    if lineOpen == 0 then lineEnd, lineFront, place = now, now, nil end
    local takes = timeOfTurn(i, n, count, turnLength)
    if not place then place, length, lineEnd = lineEnd, 0, lineEnd + 1 end
    takes = max(0, takes - length)
    if place >= lineFront then lineOpen = lineOpen + takes end
    length = length + takes
    lineUntil, took = max(lineUntil, due + length), false
    reply[9], reply[10] = place, length
  end
  return true, due, i
end

-- Ends the caller's turn, because its requests go. Turns before it do not count any more: their processes died,
-- or go first when they ask.
function line.take()
  if not lined or not place then return end
  if place >= lineFront then
    lineOpen = mulDiv(max(0, lineOpen - length), lineEnd - place - 1, max(1, lineEnd - lineFront - 1))
    lineFront = place + 1
  end
  place, took, reply[9], reply[10] = nil, true, 0, 0
end

-- Whether a request goes so late behind the first future one that the caller needs another turn.
function line.isOver(at, first) return lined and bundledUntil <= now and at > max(near + NEAR, first) + turnLength end

-- As line.wait, for the request behind the caller's turn. If no other process has a turn, the caller asks
-- again at the last of its times, so that a process which comes until then is before it.
function line.next(cost, spare, count, at, what, within)
  took = false
  if lineOpen == 0 then return false, at, what end
  return line.wait(cost, spare, count, at, what, within)
end
