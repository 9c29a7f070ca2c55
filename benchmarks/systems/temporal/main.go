// The dev server of the Temporal CLI, without the rest of the CLI, a part of which is not in its module.
package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/google/uuid"
	"github.com/temporalio/cli/internal/devserver"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	server, err := devserver.Start(devserver.StartOptions{
		FrontendIP:             "127.0.0.1",
		FrontendPort:           port,
		Namespaces:             []string{"default"},
		ClusterID:              uuid.NewString(),
		MasterClusterName:      "active",
		CurrentClusterName:     "active",
		InitialFailoverVersion: 1,
		MetricsPort:            devserver.MustGetFreePort("127.0.0.1"),
		DatabaseFile:           os.Args[2],
		Logger:                 slog.New(slog.NewTextHandler(os.Stderr, nil)),
		LogLevel:               slog.LevelWarn,
		DynamicConfigValues: map[string]any{ // as `temporal server start-dev` has them
			"system.forceSearchAttributesCacheRefreshOnRead": true,
			"system.forceNexusEndpointRefreshOnRead":         true,
			"frontend.persistenceMaxQPS":                     10000,
			"history.persistenceMaxQPS":                      45000,
		},
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	server.Stop()
}
