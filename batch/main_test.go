package batch_test

import (
	"os"
	"testing"

	"github.com/apithrottle/throttle/internal/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }
