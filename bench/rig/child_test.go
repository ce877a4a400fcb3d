package rig

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"testing"
)

func TestMain(m *testing.M) {
	Work(func(n int) (int, error) {
		if n < 0 {
			return 0, errors.New("the job is negative")
		}
		return 2 * n, nil
	})
	os.Exit(m.Run())
}

func TestChildren(t *testing.T) {
	children, err := Start(3)
	defer End(children)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Do[int](children, func(i int) int { return i }); err != nil || !slices.Equal(got, []int{0, 2, 4}) {
		t.Errorf("got %v, %v, want [0 2 4]", got, err)
	}
}

func TestChildFails(t *testing.T) {
	children, err := Start(1)
	defer End(children)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Do[int](children, func(int) int { return -1 }); err == nil {
		t.Error("got no error of a child that failed")
	}
}

func TestMemory(t *testing.T) {
	for file, field := range map[string]*regexp.Regexp{"child_test.go": available, "none": proportional} {
		if n, known := kilobytes(file, field); n != 0 || known {
			t.Errorf("kilobytes(%s) = %d, %v, want 0, false", file, n, known)
		}
	}
}
