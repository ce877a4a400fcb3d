-- call.lua: what a call brings, and what it is answered.

local arguments, cursor -- the caller's, and the place of the next one
local reply
local crossing -- whether it is told how far calendars have come; nil: not even that it is not
local ops = {} -- by their letters, see main.lua

local function argument()
  cursor = cursor + 1
  return arguments[cursor - 1] + 0
end
