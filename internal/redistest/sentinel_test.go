package redistest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/redistest"
)

// patience is how long servers that talk among themselves may take.
const patience = time.Minute

func TestSentinel_GoesOverToTheReplica(t *testing.T) {
	for name, failover := range map[string]func(t *testing.T, s *redistest.Sentinel){
		"when told":                func(t *testing.T, s *redistest.Sentinel) { s.Failover(t) },
		"when the primary is gone": func(t *testing.T, s *redistest.Sentinel) { s.KillPrimary(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.NewSentinel(t)
			rdb := s.Client(t)
			require.NoError(t, rdb.Set(t.Context(), "k", "before", 0).Err())
			replica := s.Replica.Client(t)
			require.Eventually(t, func() bool { return replica.Get(t.Context(), "k").Val() == "before" }, patience, time.Millisecond)
			assert.Equal(t, "before", s.Primary.Client(t).Get(t.Context(), "k").Val())

			failover(t, s)
			require.Eventually(t, func() bool {
				return rdb.Set(t.Context(), "k", "after", 0).Err() == nil && replica.Get(t.Context(), "k").Val() == "after"
			}, patience, time.Millisecond, "clients do not follow")
		})
	}
}
