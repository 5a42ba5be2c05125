#include <cuda.h>
#include <cstdio>
#include <vector>
#include <chrono>
#include <cstdlib>
#define CK(x) do{CUresult r=(x); if(r){const char*s;cuGetErrorString(r,&s);printf("FAIL %s: %s line %d\n",#x,s,__LINE__);exit(1);} }while(0)
static double now(){return std::chrono::duration<double,std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();}
__global__ void fill(unsigned*p,size_t n,unsigned v){for(size_t i=blockIdx.x*(size_t)blockDim.x+threadIdx.x;i<n;i+=(size_t)gridDim.x*blockDim.x)p[i]=v+(unsigned)i;}
__global__ void check(unsigned*p,size_t n,unsigned v,unsigned*bad){for(size_t i=blockIdx.x*(size_t)blockDim.x+threadIdx.x;i<n;i+=(size_t)gridDim.x*blockDim.x)if(p[i]!=v+(unsigned)i)atomicAdd(bad,1);}
static size_t freeb(){size_t f,t;cuMemGetInfo(&f,&t);return f;}
int main(){
  CK(cuInit(0));CUdevice d;CK(cuDeviceGet(&d,0));CUcontext c;CK(cuDevicePrimaryCtxRetain(&c,d));CK(cuCtxSetCurrent(c));
  CUmemAllocationProp p={};p.type=CU_MEM_ALLOCATION_TYPE_PINNED;p.location.type=CU_MEM_LOCATION_TYPE_DEVICE;p.location.id=0;p.requestedHandleTypes=CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemAccessDesc a={};a.location=p.location;a.flags=CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUstream s;CK(cuStreamCreate(&s,CU_STREAM_NON_BLOCKING));
  unsigned*bad;cudaMalloc(&bad,4);cudaMemset(bad,0,4);
  for(size_t tib: {1ul,8ul,32ul,64ul,100ul}){CUdeviceptr v;double t=now();CUresult r=cuMemAddressReserve(&v,tib<<40,0,0,0);printf("reserve %zu TiB: %d %.0f us\n",tib,r,now()-t);if(!r)CK(cuMemAddressFree(v,tib<<40));}
  for(size_t cs: {2ul<<20,32ul<<20,256ul<<20}){
    size_t N=cs==(2ul<<20)?8192:2048;
    CUmemGenericAllocationHandle h;double t0=now();CK(cuMemCreate(&h,cs,&p,0));double t1=now();
    CUdeviceptr v;CK(cuMemAddressReserve(&v,cs*N,0,0,0));
    size_t f0=freeb();
    std::vector<double> tm,ta,tu;
    for(size_t i=0;i<N;i++){double x=now();CK(cuMemMap(v+i*cs,cs,0,h,0));double y=now();CK(cuMemSetAccess(v+i*cs,cs,&a,1));double z=now();tm.push_back(y-x);ta.push_back(z-y);}
    size_t f1=freeb();
    auto avg=[&](std::vector<double>&w,size_t lo,size_t hi){double q=0;for(size_t i=lo;i<hi;i++)q+=w[i];return q/(hi-lo);};
    printf("chunk %zu MiB create %.1f; %zu aliases: map %.2f first64 %.2f last64; access %.2f first64 %.2f last64; device memory used by tables %.2f MiB\n",cs>>20,t1-t0,N,avg(tm,0,64),avg(tm,N-64,N),avg(ta,0,64),avg(ta,N-64,N),(f0-f1)/1048576.0);
    // coherence: write via i, read via j
    size_t n=(2ul<<20)/4;
    for(int k=0;k<4000;k++){size_t i=rand()%N,j=rand()%N;fill<<<64,256,0,s>>>((unsigned*)(v+i*cs),n,k*77);check<<<64,256,0,s>>>((unsigned*)(v+j*cs),n,k*77,bad);}
    CK(cuStreamSynchronize(s));unsigned hb;cudaMemcpy(&hb,bad,4,cudaMemcpyDeviceToHost);printf("  alias coherence bad=%u\n",hb);
    // concurrent neighbours: two streams write disjoint halves (512 B interleave boundary) through different aliases
    for(size_t i=0;i<N;i++){double x=now();CK(cuMemUnmap(v+i*cs,cs));tu.push_back(now()-x);}
    printf("  unmap %.2f first64 %.2f last64; free back %.2f MiB\n",avg(tu,0,64),avg(tu,N-64,N),(freeb()-f0)/1048576.0);
    double x=now();CK(cuMemRelease(h));printf("  release %.1f\n",now()-x);
    CK(cuMemAddressFree(v,cs*N));
  }
  // disjoint 512 B blocks of one chunk written at once through two aliases on two streams
  {size_t cs=2ul<<20;CUmemGenericAllocationHandle h;CK(cuMemCreate(&h,cs,&p,0));CUdeviceptr v;CK(cuMemAddressReserve(&v,cs*2,0,0,0));for(int i=0;i<2;i++)CK(cuMemMap(v+i*cs,cs,0,h,0));CK(cuMemSetAccess(v,2*cs,&a,1));
   CUstream s2;CK(cuStreamCreate(&s2,CU_STREAM_NON_BLOCKING));CK(cudaMemset(bad,0,4)?CUDA_ERROR_UNKNOWN:CUDA_SUCCESS);
   for(int k=0;k<500;k++){for(int b=0;b<64;b++){size_t o=(size_t)b*1024;fill<<<1,128,0,s>>>((unsigned*)(v+o),128,k+b);fill<<<1,128,0,s2>>>((unsigned*)(v+cs+o+512),128,k-b);}
     CK(cuStreamSynchronize(s));CK(cuStreamSynchronize(s2));
     for(int b=0;b<64;b++){size_t o=(size_t)b*1024;check<<<1,128,0,s>>>((unsigned*)(v+cs+o),128,k+b,bad);check<<<1,128,0,s>>>((unsigned*)(v+o+512),128,k-b,bad);}
     CK(cuStreamSynchronize(s));}
   unsigned hb;cudaMemcpy(&hb,bad,4,cudaMemcpyDeviceToHost);printf("two streams, disjoint 512 B blocks through two aliases: bad=%u\n",hb);}
  // window of k chunks: map all, one set access; mapping while kernels run
  for(size_t cs: {2ul<<20,16ul<<20,32ul<<20,64ul<<20}){int k=16;std::vector<CUmemGenericAllocationHandle>h(k);double t=now();for(auto&x:h)CK(cuMemCreate(&x,cs,&p,0));double t1=now();CUdeviceptr v;CK(cuMemAddressReserve(&v,cs*k*4,0,0,0));double t2=now();
   for(int r=0;r<4;r++){double x=now();for(int i=0;i<k;i++)CK(cuMemMap(v+(r*k+i)*cs,cs,0,h[i],0));double y=now();CK(cuMemSetAccess(v+r*k*cs,cs*k,&a,1));double z=now();printf("chunk %zu MiB x%d alias %d: map %.2f, access %.2f us a chunk\n",cs>>20,k,r,(y-x)/k,(z-y)/k);}
   double x=now();for(int r=0;r<4;r++)CK(cuMemUnmap(v+r*k*cs,cs*k));double y=now();for(auto&q:h)CK(cuMemRelease(q));printf("   create %.2f unmap %.2f release %.2f us a chunk\n",(t1-t)/k,(y-x)/k/4,(now()-y)/k);(void)t2;}
  return 0;}
