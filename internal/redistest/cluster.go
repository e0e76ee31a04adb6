package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Cluster is a Redis Cluster of three masters without replicas, which share the
// slots equally until a Migration moves some.
type Cluster struct {
	nodes []*Server
}

const (
	masters = 3
	slots   = 16384

	// agreeTimeout bounds the wait until servers that talk among themselves agree. A
	// new cluster takes no commands for 2 s, and the rest depends on the machine.
	agreeTimeout = 60 * time.Second
)

// NewCluster starts the servers with args, joins them, and waits until all of them
// say that the cluster works. It ends with the test, and is skipped or fails as
// NewServer does.
func NewCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{}
	for range masters {
		c.nodes = append(c.nodes, newServer(t, clusterPort, append([]string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		}, args...)))
	}
	for i, node := range c.nodes { // before the nodes meet: an epoch is given to one alone
		admin := node.Client(t)
		demand(t, admin.Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		demand(t, admin.ClusterAddSlotsRange(t.Context(), slots*i/masters, slots*(i+1)/masters-1).Err())
	}
	for _, node := range c.nodes {
		admin := node.Client(t)
		for _, other := range c.nodes {
			if other != node {
				demand(t, admin.ClusterMeet(t.Context(), "127.0.0.1", strconv.Itoa(other.port)).Err())
			}
		}
	}
	await(t, "the nodes do not make a cluster", func() bool {
		return !slices.ContainsFunc(c.nodes, func(node *Server) bool { return !node.inCluster(t) })
	})
	return c
}

// clusterPort chooses a port so that it and the cluster bus port, which is 10,000
// higher, are both below those that the kernel gives out, so that no connection has
// them.
func clusterPort(testing.TB) int { return 11_000 + rand.N(11_000) }

// inCluster tells whether a node is ready, and sees all others so.
func (s *Server) inCluster(t testing.TB) bool {
	info, err := s.ask("CLUSTER INFO\r\n")
	demand(t, err)
	return strings.Contains(info, "cluster_state:ok") &&
		strings.Contains(info, fmt.Sprintf("cluster_slots_ok:%d\r\n", slots)) &&
		strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r\n", masters)) &&
		strings.Contains(info, fmt.Sprintf("cluster_size:%d\r\n", masters))
}

// Nodes returns the servers.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Client returns a client of the cluster with go-redis's default options, changed
// by edit in the order given. It is closed at the test's end.
func (c *Cluster) Client(t testing.TB, edit ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{}
	for _, node := range c.nodes {
		o.Addrs = append(o.Addrs, node.Addr())
	}
	for _, e := range edit {
		e(o)
	}
	client := redis.NewClusterClient(o)
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Logf("closing the client: %v", err)
		}
	})
	return client
}

// Owner returns the server that has a key's slot.
func (c *Cluster) Owner(t testing.TB, key string) *Server {
	t.Helper()
	for _, node := range c.nodes {
		if err := node.Client(t).Exists(t.Context(), key).Err(); !redis.HasErrorPrefix(err, "MOVED") {
			return node
		}
	}
	t.Fatalf("no node has the slot of %q", key)
	return nil
}

// A Migration moves a slot from one node to another, in the steps in which
// redis-cli does it.
type Migration struct {
	Slot     int
	From, To *Server

	cluster *Cluster
	id      string // of To
}

// Migrate begins to move the slot of a key to another node: from now on keys that
// are not where they were are asked for there. At most one Migration of a slot may
// be under way.
func (c *Cluster) Migrate(t testing.TB, key string) *Migration {
	t.Helper()
	m := &Migration{From: c.Owner(t, key), cluster: c}
	m.To = c.nodes[(slices.Index(c.nodes, m.From)+1)%len(c.nodes)]
	from, to := m.From.Client(t), m.To.Client(t)
	slot, err := from.ClusterKeySlot(t.Context(), key).Result()
	demand(t, err)
	m.Slot = int(slot)
	m.id, err = to.ClusterMyID(t.Context()).Result()
	demand(t, err)
	source, err := from.ClusterMyID(t.Context()).Result()
	demand(t, err)
	demand(t, to.Do(t.Context(), "CLUSTER", "SETSLOT", m.Slot, "IMPORTING", source).Err())
	demand(t, from.Do(t.Context(), "CLUSTER", "SETSLOT", m.Slot, "MIGRATING", m.id).Err())
	return m
}

// Keys returns the keys of the slot that one of the two nodes has.
func (m *Migration) Keys(t testing.TB, node *Server) []string {
	t.Helper()
	keys, err := node.Client(t).ClusterGetKeysInSlot(t.Context(), m.Slot, 1000).Result()
	demand(t, err)
	return keys
}

// Move takes one key over, which must be there or have just expired.
func (m *Migration) Move(t testing.TB, key string) {
	t.Helper()
	demand(t, m.From.Client(t).Migrate(t.Context(), "127.0.0.1", strconv.Itoa(m.To.port), key, 0, startTimeout).Err())
}

// End takes over the keys that are left and has all nodes know that the slot has
// moved.
func (m *Migration) End(t testing.TB) {
	t.Helper()
	for keys := m.Keys(t, m.From); len(keys) > 0; keys = m.Keys(t, m.From) {
		for _, key := range keys {
			m.Move(t, key)
		}
	}
	// The new owner first, so that no node sends anyone where nobody feels in charge.
	others := slices.DeleteFunc(slices.Clone(m.cluster.nodes), func(s *Server) bool { return s == m.To || s == m.From })
	for _, node := range append([]*Server{m.To, m.From}, others...) {
		demand(t, node.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", m.Slot, "NODE", m.id).Err())
	}
}

// demand fails the test at an error of what only prepares it.
func demand(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await polls until ok.
func await(t testing.TB, otherwise string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(agreeTimeout); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v %s", agreeTimeout, otherwise)
		}
	}
}
