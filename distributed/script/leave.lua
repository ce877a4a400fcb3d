-- leave.lua: the operation leave, which gives back a turn.
-- Uses: call.lua, line.lua, turn.lua.
-- Gives: ops.leave.
-- Sets: delayedEnd, lineOpen, oldEnd, openTurns, promised, promisedOld, turnsEnd.

function ops.leave()
  local turn, count = argument(), argument()
  if count < 0 then -- of the line, see line.lua
    if turn >= lineFront and turn < lineEnd then lineOpen = max(0, lineOpen + count) end
    return
  end
  if turn > turnsEnd then return end -- it is of a lost state
  if count == 0 then
    openTurns = max(0, openTurns - 1)
  elseif turn <= oldEnd then
    promisedOld = max(0, promisedOld - count)
  else
    promised = max(0, promised - count)
  end
  if openTurns + promised + promisedOld == 0 then turnsEnd, delayedEnd, oldEnd = 0, 0, 0 end
end
