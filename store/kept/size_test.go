package kept

import ("testing";"fmt")

func TestSizes(t *testing.T) {
	for _, s := range subjects {
		q := s.quota(t)
		var sizes []int
		for _, of := range [][2]int{{0, 0}, {64, 0}, {500, 0}, {0, 100}, {0, 400}} {
			sizes = append(sizes, len(s.value(t, q, of[0], of[1])))
		}
		fmt.Println(s.name, sizes, "ledger", func() int { p := s.part(t, q, s.value(t,q,0,0), start+1_000_100); d, _ := p.ledger().AppendBinary(nil); return len(d) }())
	}
}
