package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// maxLoginPause is the longest that a user and password that were refused are not tried again: a
// login costs a server far more than any other request, and thousands of clients may have the same
// wrong password. Others are tried at once.
const maxLoginPause = 30 * time.Second

// login is [clientv3.Auth] with the user and password that the settings file has when etcd's client
// logs in. It does that at the start, and whenever a server knows its token no more: when the token
// has expired, and when the password was changed.
type login struct {
	clientv3.Auth
	file string
	log  *slog.Logger

	mu sync.Mutex
	// done counts the logins; a token is of the last.
	done int
	// refused are the user and password that were refused so many times in a row, and until when
	// they are not tried again.
	refused  [2]string
	failures int
	until    time.Time
	why      error
}

// Authenticate implements [clientv3.Auth]. What it is given is what the client began with.
func (l *login) Authenticate(ctx context.Context, user, password string) (*clientv3.AuthenticateResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := ReadFile(l.file)
	if err != nil {
		return nil, fmt.Errorf("log in to etcd: %w", err)
	}
	if f.Username != "" {
		user, password = f.Username, f.Password
	}
	now := [2]string{user, password}
	if now != l.refused {
		l.failures, l.until = 0, time.Time{}
	}
	if time.Now().Before(l.until) {
		return nil, l.why
	}
	resp, err := l.Auth.Authenticate(ctx, user, password)
	switch {
	case err == nil:
		l.log.Info("logged in to etcd", "user", user)
		l.refused, l.failures = [2]string{}, 0
		l.done++
	case errors.Is(err, rpctypes.ErrAuthFailed):
		l.refused, l.until = now, time.Now().Add(retryPause(l.failures, maxLoginPause))
		l.failures++
		l.why = fmt.Errorf("etcd refuses user %q with the password in %s: %w", user, l.file, err)
		return nil, l.why
	}
	return resp, err
}

// stream returns a context for a stream that uses the token of the last login. etcd's client puts
// all watches of contexts with the same metadata on one stream, which keeps the token that it began
// with; a server refuses new watches there when it knows that no more.
func (l *login) stream(ctx context.Context) context.Context {
	if l == nil {
		return ctx
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return metadata.AppendToOutgoingContext(ctx, "login", strconv.Itoa(l.done))
}
