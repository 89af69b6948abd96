package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// maxLoginPause is the longest that a user and password that were refused are not tried again: a
// login costs a server far more than any other request, and thousands of clients may have the same
// wrong password. Others are tried at once.
const maxLoginPause = 30 * time.Second

// inFile stands for the user and the password of the settings file in what etcd's client is given:
// without any it would never log in, not even if the file has them later.
const inFile = "as in the settings file"

// login is between etcd's client and the servers, and has it log in with the user and password that
// the settings file has at that moment. It does that at the start, and whenever a server does not
// know its token: when it has none, when the token has expired, and when the password was changed.
type login struct {
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

// intercept is a [grpc.UnaryClientInterceptor] on the inside of that of etcd's client, which logs
// in and tries again when a server asks for a user.
func (l *login) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, ok := req.(*pb.AuthenticateRequest); ok {
		return l.authenticate(func(user, password string) error {
			return invoker(ctx, method, &pb.AuthenticateRequest{Name: user, Password: password}, reply, cc, opts...)
		})
	}
	err := invoker(ctx, method, req, reply, cc, opts...)
	if errors.Is(rpctypes.Error(err), rpctypes.ErrUserEmpty) {
		if f, ferr := ReadFile(l.file); ferr != nil {
			return ferr
		} else if f.Username == "" { // there is nothing to log in with, and to try again
			return fmt.Errorf("etcd lets only users in: add the username and the password of one to %s", l.file)
		}
	}
	return err
}

// authenticate logs in by request, if the file has a user.
func (l *login) authenticate(request func(user, password string) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := ReadFile(l.file)
	if err != nil {
		return fmt.Errorf("log in to etcd: %w", err)
	}
	if f.Username == "" {
		return rpctypes.ErrGRPCAuthNotEnabled // etcd's client goes on without a token
	}
	now := [2]string{f.Username, f.Password}
	if now != l.refused {
		l.failures, l.until = 0, time.Time{}
	}
	if time.Now().Before(l.until) {
		return l.why
	}
	err = request(f.Username, f.Password)
	switch {
	case err == nil:
		l.log.Info("logged in to etcd", "user", f.Username)
		l.refused, l.failures = [2]string{}, 0
		l.done++
	case errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed):
		l.refused, l.until = now, time.Now().Add(retryPause(l.failures, maxLoginPause))
		l.failures++
		l.why = fmt.Errorf("etcd refuses user %q with the password in %s: %w", f.Username, l.file, rpctypes.Error(err))
		return l.why
	}
	return err
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
