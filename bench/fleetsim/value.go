package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle/internal/redislua"
)

// copy returns a deep copy.
func (v *value) copy() *value {
	order := sortedSet{slices.Clone(v.order.members), maps.Clone(v.order.scores)}
	return &value{append([]byte(nil), v.bytes...), maps.Clone(v.fields), order, v.expires}
}

// execute runs one of the commands on hashes and sorted sets that the script uses.
func (v *value) execute(name string, args []string) (any, error) {
	field := func(name string) any {
		if f, ok := v.fields[name]; ok {
			return f
		}
		return nil
	}
	switch {
	case name == "HGET" && len(args) == 1:
		return field(args[0]), nil
	case name == "HMGET":
		var all []any
		for _, name := range args {
			all = append(all, field(name))
		}
		return all, nil
	case name == "HSET" && len(args) == 2:
		v.fields[args[0]] = args[1]
		return int64(1), nil
	case name == "HDEL" && len(args) == 1:
		delete(v.fields, args[0])
		return int64(1), nil
	case name == "ZADD" && len(args) == 2:
		at, _ := score(args[0])
		v.order.remove(args[1])
		v.order.add(entry{at, args[1]})
		return int64(1), nil
	case name == "ZREM":
		for _, name := range args {
			v.order.remove(name)
		}
		return int64(len(args)), nil
	case name == "ZRANGEBYSCORE" && len(args) == 5 && args[3] == "0":
		return v.order.between(args[0], args[1], args[4]), nil
	}
	return nil, redislua.Error(fmt.Sprintf("ERR unknown command '%s', with args beginning with: %.80q", name, args))
}

// A sortedSet keeps its members in order.
type sortedSet struct {
	members []entry
	scores  map[string]float64
}

type entry struct {
	score float64
	name  string
}

func (m entry) compare(other entry) int {
	return cmp.Or(cmp.Compare(m.score, other.score), cmp.Compare(m.name, other.name))
}

func (s *sortedSet) add(m entry) {
	i, _ := slices.BinarySearchFunc(s.members, m, entry.compare)
	s.members = slices.Insert(s.members, i, m)
	s.scores[m.name] = m.score
}

func (s *sortedSet) remove(name string) {
	if at, ok := s.scores[name]; ok {
		i, _ := slices.BinarySearchFunc(s.members, entry{at, name}, entry.compare)
		s.members = slices.Delete(s.members, i, i+1)
		delete(s.scores, name)
	}
}

// between returns the names of the first members with scores in a range.
func (s *sortedSet) between(from, to, count string) (names []string) {
	least, _ := score(from)
	most, open := score(to)
	limit, err := strconv.Atoi(count)
	if err != nil {
		panic(err) // a mistake in the script
	}
	i, _ := slices.BinarySearchFunc(s.members, entry{score: least}, entry.compare)
	for ; i < len(s.members) && len(names) < limit; i++ {
		m := s.members[i]
		if m.score > most || m.score == most && open {
			break
		}
		names = append(names, m.name)
	}
	return names
}

// score parses a score, and reports whether a range excludes it.
func score(text string) (at float64, open bool) {
	text, open = strings.CutPrefix(text, "(")
	at, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err) // a mistake in the script
	}
	return at, open
}
