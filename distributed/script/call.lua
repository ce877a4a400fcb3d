-- call.lua: the arguments and the reply of a call. Gives: arguments, cursor, reply, crossing, ops,
-- argument.

local arguments, cursor -- the caller's arguments, and the place of the next one
local reply
-- Whether the reply reports the crossings of calendars; false: it has zeros instead; nil: it has
-- neither.
local crossing
local ops = {} -- the operations by their names, see main.lua

local function argument()
  cursor = cursor + 1
  return arguments[cursor - 1] + 0
end
