package kept

import "fmt"

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
	for i := range s.ledgers { s.ledgers[i].data = nil}
	return fmt.Sprintf("%+v %v", s, err)
}
