package kept

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
