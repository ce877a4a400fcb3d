-- queue.lua: records of equal width in the state, oldest first. They leave at the
-- front, and only the last one changes or gets a successor. So most of them are
-- never looked at: they are read when asked for, and what was not changed goes
-- back as the bytes that it came from.
--
-- A queue is a table: its fields, and the numbers read so far in its array part.

local body = '' -- the bytes of the state that follow the rings

local function queue(at, count, width)
  return {at = at, width = width, first = 1, last = count, intact = count, page = 1}
end

-- The index before the numbers of record i. Whoever goes on reading gets more and
-- more of them at once.
local function record(q, i)
  local width = q.width
  local base = (i - 1) * width
  if not q[base + 1] then
    local n = min(q.page, q.intact - i + 1) * width
    local numbers = {parse(sevens(n), body, q.at + 7 * base)}
    for j = 1, n do q[base + j] = numbers[j] end
    q.page = min(64, q.page * 2)
  end
  return base
end

-- The index before the numbers of a last record that may be changed.
local function lastRecord(q)
  local base = record(q, q.last)
  q.intact = min(q.intact, q.last - 1)
  return base
end

-- The index before the numbers of a new last record, to be filled.
local function append(q)
  q.last = q.last + 1
  return (q.last - 1) * q.width
end

local function length(q) return q.last - q.first + 1 end

local function clear(q) q.first, q.intact = q.last + 1, min(q.intact, q.last) end

-- What is left of the queue, as bytes.
local function bytes(q)
  local size, from = 7 * q.width, max(q.first, q.intact + 1)
  local kept = sub(body, q.at + size * (q.first - 1), q.at + size * (from - 1) - 1)
  if from > q.last then return kept end
  local format, records = sevens(q.width), {kept}
  for i = from, q.last do
    records[#records + 1] = pack(format, spread(q, (i - 1) * q.width + 1, i * q.width))
  end
  return concat(records)
end
