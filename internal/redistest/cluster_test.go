package redistest_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/redistest"
)

func TestCluster_MovesASlotStepByStep(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t)
	require.Len(t, c.Nodes(), 3)
	rdb := c.Client(t)
	for _, key := range []string{"{s}a", "{s}b", "other"} {
		require.NoError(t, rdb.Set(t.Context(), key, "v "+key, 0).Err())
	}
	owner := c.Owner(t, "{s}a")
	moved := c.Nodes()[0]
	if moved == owner {
		moved = c.Nodes()[1]
	}
	assert.True(t, redis.HasErrorPrefix(moved.Client(t).Get(t.Context(), "{s}a").Err(), "MOVED"))

	m := c.Migrate(t, "{s}a")
	assert.Equal(t, owner, m.From)
	assert.ElementsMatch(t, []string{"{s}a", "{s}b"}, m.Keys(t, m.From))
	m.Move(t, "{s}a")
	assert.Equal(t, []string{"{s}b"}, m.Keys(t, m.From))
	assert.Equal(t, []string{"{s}a"}, m.Keys(t, m.To))
	from := m.From.Client(t, once)
	assert.True(t, redis.HasErrorPrefix(from.Get(t.Context(), "{s}a").Err(), "ASK"))
	assert.True(t, redis.HasErrorPrefix(from.MGet(t.Context(), "{s}a", "{s}b").Err(), "TRYAGAIN"))
	assert.Equal(t, "v {s}a", rdb.Get(t.Context(), "{s}a").Val(), "a client is led to the other node")

	m.End(t)
	assert.Equal(t, m.To, c.Owner(t, "{s}a"))
	assert.Empty(t, m.Keys(t, m.From))
	assert.True(t, redis.HasErrorPrefix(from.Get(t.Context(), "{s}b").Err(), "MOVED"))
	for _, key := range []string{"{s}a", "{s}b", "other"} {
		assert.Equal(t, "v "+key, rdb.Get(t.Context(), key).Val())
	}
}
