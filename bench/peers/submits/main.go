// A light client of JobService.Submit: as many calls in flight as asked, on a few connections.
//
//	submits ADDRESS IN_FLIGHT SECONDS PER_SECOND REQUEST_IN_HEX
//
// PER_SECOND 0 sends the next call when one has ended. Prints calls per second and the 50th and 99th
// percentile of a call in milliseconds. Any call that fails ends the program.
package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	method      = "/jobq.v1.JobService/Submit"
	connections = 4 // one connection is one lock in the client
)

// raw sends requests that are encoded already, and does not decode replies.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (raw) Name() string                       { return "proto" }

func main() {
	if len(os.Args) != 6 {
		log.Fatal("usage: submits ADDRESS IN_FLIGHT SECONDS PER_SECOND REQUEST_IN_HEX")
	}
	inFlight, seconds, perSecond := number(os.Args[2]), number(os.Args[3]), number(os.Args[4])
	body, err := hex.DecodeString(os.Args[5])
	check(err)
	var clients []*grpc.ClientConn
	for range connections {
		client, err := grpc.NewClient(os.Args[1],
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
		check(err)
		submit(client, body)
		clients = append(clients, client)
	}
	took := make([][]time.Duration, int(inFlight))
	began := time.Now()
	end := began.Add(time.Duration(seconds * float64(time.Second)))
	var all sync.WaitGroup
	for n := range int(inFlight) {
		all.Go(func() {
			for next := began; time.Now().Before(end); {
				if perSecond > 0 {
					next = next.Add(time.Duration(inFlight / perSecond * float64(time.Second)))
					time.Sleep(time.Until(next))
				}
				start := time.Now()
				submit(clients[n%connections], body)
				took[n] = append(took[n], time.Since(start))
			}
		})
	}
	all.Wait()
	every := slices.Concat(took...)
	slices.Sort(every)
	rate := float64(len(every)) / time.Since(began).Seconds()
	fmt.Printf("%.0f %.3f %.3f\n", rate, ms(every[len(every)/2]), ms(every[len(every)*99/100]))
}

func submit(client *grpc.ClientConn, body []byte) {
	deadline, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var reply []byte
	check(client.Invoke(deadline, method, body, &reply))
}

func number(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	check(err)
	return value
}

func ms(span time.Duration) float64 { return float64(span.Microseconds()) / 1000 }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
