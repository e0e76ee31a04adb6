package leasehold_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/redistest"
)

func TestEveryCall_OverTLS(t *testing.T) {
	t.Parallel()
	addr, roots := tlsServer(t)
	rdb := redis.NewClient(&redis.Options{Addr: addr, TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	t.Cleanup(func() { _ = rdb.Close() })
	everyCall(t, rdb, key)

	stranger := redis.NewClient(&redis.Options{Addr: addr, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12}})
	t.Cleanup(func() { _ = stranger.Close() })
	_, err := newClient(t, stranger).NewLock(key).TryAcquire(t.Context())
	var unknown x509.UnknownAuthorityError
	assert.ErrorAs(t, err, &unknown, "a certificate that nobody vouches for")
}

// tlsServer starts a redis-server that speaks TLS, and returns its address and who
// vouches for its certificate. TLS is set on a running server, which tells whether
// it was built with it, and lets another port be tried.
func tlsServer(t *testing.T) (addr string, roots *x509.CertPool) {
	t.Helper()
	admin := redistest.NewServer(t).Client(t)
	if len(admin.ConfigGet(t.Context(), "tls-port").Val()) == 0 {
		t.Skip("this redis-server was built without TLS")
	}
	certFile, keyFile, roots := certificate(t)
	for _, setting := range [][2]string{
		{"tls-cert-file", certFile}, {"tls-key-file", keyFile}, {"tls-auth-clients", "no"},
	} {
		require.NoError(t, admin.ConfigSet(t.Context(), setting[0], setting[1]).Err())
	}
	for range 10 {
		port := clusterPort(t)
		err := admin.ConfigSet(t.Context(), "tls-port", port).Err()
		if err == nil {
			// The connections that there are stay, for the admin.
			require.NoError(t, admin.ConfigSet(t.Context(), "port", "0").Err())
			return net.JoinHostPort("127.0.0.1", port), roots
		}
		require.ErrorContains(t, err, "listen")
	}
	t.Fatal("redis-server found each of ten free ports in use")
	return "", nil
}

// certificate makes a certificate for 127.0.0.1 that vouches for itself.
func certificate(t *testing.T) (certFile, keyFile string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)

	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(certFile, cert, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	roots = x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(cert))
	return certFile, keyFile, roots
}
