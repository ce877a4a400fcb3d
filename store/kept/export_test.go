package kept

import (
	"fmt"
	"github.com/apithrottle/throttle/algorithms"
)

// Reencode decodes a value and encodes it again.
func Reencode(value []byte) ([]byte, error) {
	s, err := parse(value)
	if err == nil {
		err = s.decode()
	}
	if err != nil {
		return nil, err
	}
	return s.encode(), nil
}

func Dump(value []byte) string {
	s, err := parse(value)
	for i := range s.ledgers {
		s.ledgers[i].data = nil
	}
	return fmt.Sprintf("%+v %v", s, err)
}

func Ledgers(value []byte) (l []algorithms.Ledger, err error) {
	s, err := parse(value)
	if err == nil {
		err = s.decode()
	}
	for i := range s.ledgers {
		l = append(l, s.ledgers[i].ledger)
	}
	return
}

func Book(value []byte) string {
	s, _ := parse(value)
	return fmt.Sprint(s.book)
}

func Owners(value []byte) string {
	s, _ := parse(value)
	u, _ := s.units()
	return fmt.Sprint(u, s.owners)
}

func Pause(value []byte) string {
	s, _ := parse(value)
	return fmt.Sprint(s.last, s.pause)
}
