package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/redistest"
)

func check(t *testing.T, url string) {
	var out bytes.Buffer
	began := time.Now()
	require.NoError(t, run(t.Context(), &out, url))
	t.Logf("%v:\n%s", time.Since(began), &out)
	for _, want := range []string{
		"worker 1 holds orders:42",
		"it still does, because it was renewed",
		`refused, "worker 1" holds it`,
		"worker 2 holds it now",
		"context has ended: leasehold: lease on \"orders:42\" lost: the key is gone",
		"errors.Is(err, ErrLost) = true",
	} {
		assert.Contains(t, out.String(), want)
	}
}

func TestQuickstart(t *testing.T) { check(t, "") }

func TestQuickstartOnRedis(t *testing.T) { check(t, "redis://"+redistest.NewServer(t).Addr()) }
