package postgres

import (
	"testing"

	"github.com/apithrottle/throttle/internal/published"
)

func TestPublished(t *testing.T) { published.Check(t) }
