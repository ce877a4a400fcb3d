-- queue.lua: records of equal width in the state, oldest first. They leave at the front, and only
-- the last record changes or gets a successor. So most records are never read: a record is parsed
-- when it is asked for, and unchanged records are saved as the bytes that were loaded.
-- Uses: pack.lua.
-- Gives: key, state, queue, record, readTo, lastRecord, append, rewrite, putQueue.
--
-- A queue is a table: its fields, and the numbers parsed so far in its array part.

local key -- the name of the quota's key
local state -- the value of the key, or the part of it that contains the queues

local function queue(at, count, width)
  return {at = at, width = width, first = 1, last = count, intact = count, page = 1}
end

-- The index before the numbers of record i. It parses records in pages, which grow with each read.
local function record(q, i)
  local width = q.width
  local base = (i - 1) * width
  if not q[base + 1] then
    local n = min(q.page, q.intact - i + 1) * width
    if n == 2 then
      q[base + 1], q[base + 2] = parse('>I7I7', state, q.at + 7 * base)
    else
      local numbers = {parse(sevens(n), state, q.at + 7 * base)}
      for j = 1, n do q[base + j] = numbers[j] end
    end
    q.page = min(64, q.page * 2)
  end
  return base
end

-- Parses the records from i to j.
local function readTo(q, i, j)
  while i <= j do
    if not q[(i - 1) * q.width + 1] then record(q, i) end
    i = i + 1
  end
end

-- The index before the numbers of the last record, which the caller may change.
local function lastRecord(q)
  local base = record(q, q.last)
  if q.intact == q.last then q.intact = q.last - 1 end
  return base
end

-- Appends a record. Returns the index before its numbers, which the caller sets.
local function append(q)
  q.last = q.last + 1
  return (q.last - 1) * q.width
end

-- Marks record i as changed.
local function rewrite(q, i)
  for j = i + 1, q.intact do record(q, j) end
  if q.intact >= i then q.intact = i - 1 end
end

-- Appends the remaining records of a queue to parts, as bytes.
local function putQueue(parts, q)
  local size, from = 7 * q.width, q.intact + 1
  if from < q.first then from = q.first end
  if from > q.first then parts[#parts + 1] = sub(state, q.at + size * (q.first - 1), q.at + size * (from - 1) - 1) end
  local at, last = (from - 1) * q.width + 1, q.last * q.width
  while at <= last do
    local to = min(last, at + 63)
    parts[#parts + 1] = pack(sevens(to - at + 1), spread(q, at, to))
    at = to + 1
  end
end
